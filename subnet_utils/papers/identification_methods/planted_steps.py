"""placeholder"""
def benchmarked(lab):
    return []
