#!/usr/bin/env bash
# A SLURM cluster of one node on this machine, for tests: munge, slurmctld, slurmd, and two devices that pass for GPUs.
#
#     cluster.sh start FOLDER     all files, logs and process numbers are in FOLDER; what uses the cluster needs
#                                 SLURM_CONF=FOLDER/slurm.conf, and FOLDER/bin first in its PATH
#     cluster.sh crash FOLDER     what a power cut does to the node: SIGKILL for slurmd and all that it runs; SLURM is told
#     cluster.sh node FOLDER      start the node again
#     cluster.sh preempt FOLDER   a job of a partition with priority takes the whole node for a second
#     cluster.sh stop FOLDER
#
# It needs root and Debian's packages slurm-wlm and munge, and no systemd, control groups or database.
set -euo pipefail
folder=$(realpath -m "$2")
node=subnet-test-node
export SLURM_CONF=$folder/slurm.conf PATH=$PATH:/usr/sbin

configure() {
  mkdir -p "$folder"/{state,spool,bin}
  # Snakemake's job steps forget SLURM_CONF; a cluster has the file where srun looks for it
  printf '#!/bin/sh\nSLURM_CONF="%s" exec /usr/bin/srun "$@"\n' "$SLURM_CONF" >"$folder/bin/srun"
  chmod +x "$folder/bin/srun"
  for gpu in 0 1; do mknod "$folder/gpu$gpu" c 1 3; done # SLURM wants devices; these are /dev/null's
  (umask 077 && head -c 1024 /dev/urandom >"$folder/munge.key")
  echo "NodeName=$node Name=gpu File=$folder/gpu[0-1]" >"$folder/gres.conf"
  # config_overrides: SLURM believes what is said here of cores and memory, however small this machine is.
  # cred_expire: what was on a node that is lost begins again after as many seconds, in place of two minutes.
  # MinJobAge: as many seconds squeue knows of jobs that have ended.
  # KillWait: as many seconds from SIGTERM to SIGKILL for a job that meets its time limit.
  cat >"$SLURM_CONF" <<END
ClusterName=test
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
AuthInfo=socket=$folder/munge.socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
ReturnToService=2
MinJobAge=3600
KillWait=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=$node NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 CPUs=16 RealMemory=128000 Gres=gpu:2
PartitionName=gpu Nodes=$node Default=YES MaxTime=INFINITE PriorityTier=1
PartitionName=urgent Nodes=$node MaxTime=INFINITE PriorityTier=2
END
}

# The jobs' processes know the node from their environment; slurmd and those that watch over jobs write to its log. All
# are ended by one call, before any can say that another has ended.
end_node() {
  local processes
  processes=$({
    grep -lsxz "SLURMD_NODENAME=$node" /proc/[0-9]*/environ
    find /proc/[0-9]*/fd -lname "$folder/slurmd.log" 2>/dev/null
  } | cut -d/ -f3 | sort -u || true)
  # shellcheck disable=SC2086
  kill -KILL $processes
}

case $1 in
  start)
    configure
    munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
      --log-file="$folder/munged.log" --seed-file="$folder/munge.seed"
    slurmctld
    slurmd -N "$node"
    ;;
  crash)
    end_node
    scontrol update NodeName="$node" State=DOWN Reason="power cut" # as a health check does; SLURM waits five minutes
    ;;
  node) slurmd -N "$node" ;;
  preempt) sbatch --partition=urgent --exclusive --output=/dev/null --wrap="sleep 1" ;;
  stop)
    end_node || true
    kill $(cat "$folder"/{slurmctld,munged}.pid)
    ;;
esac
