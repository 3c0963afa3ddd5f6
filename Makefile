# `make` alone lists the targets. All of them use .venv, which the first one makes: uv from uv.lock where there is uv
# (UV= for none), else pip from requirements.lock.

PROFILE ?= tiny
CORES ?= all
PYTHON ?= $(firstword $(shell for python in python3.11 python3.12 python3.13 python3; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python"; done))
UV ?= $(shell command -v uv 2>/dev/null)
VENV_PYTHON = .venv/bin/python
PROFILES = $(sort $(notdir $(basename $(wildcard params/*.yaml))))

# Waiting threads sleep instead of spinning: two to three times faster where cores are shared.
export OMP_WAIT_POLICY ?= PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1
# Where it is set, every process compiles what it imports again: ten seconds each, and there are hundreds.
unexport PYTHONDONTWRITEBYTECODE

# For a shell, whatever is in it.
quoted = '$(subst ','\'',$(1))'

# A profile is a name in params/ or a YAML file; its figures and runs go by its name.
NAME = $(notdir $(basename $(PROFILE)))
FILE = $(if $(filter %.yaml %.yml,$(PROFILE)),$(PROFILE),params/$(PROFILE).yaml)

.PHONY: help reproduce show site push pull cost rehearse test lab lint
help:
	@echo 'make reproduce             run all notebooks on the tiny profile and say where figures, tables and report are'
	@echo 'make reproduce PROFILE=... the same on another profile: $(PROFILES), or your own YAML file'
	@echo 'make show                  show what needs no training: networks of the zoo, and the report on laptop'
	@echo 'make site PROFILE=...      build report, API pages and a network to take apart as a site, in site/<profile>/'
	@echo 'make push REPO=OWNER/NAME  send all artefacts to a dataset on the model hub; make pull REPO=... fetches them'
	@echo 'make cost PROFILE=...      say what a profile costs on this machine (notebook 11)'
	@echo 'make rehearse PROFILE=...  make one step of each kind of a profile on a CPU, before a GPU is rented'
	@echo 'make test                  run the whole test suite, the notebooks on the check profile included'
	@echo 'make lab                   open JupyterLab; ARGS=... for its options, such as --no-browser'
	@echo 'make lint                  check style and formatting of code and notebooks'

# Before the installation: a misspelt profile should not cost minutes.
ifneq ($(filter reproduce site cost rehearse,$(MAKECMDGOALS)),)
ifneq ($(and $(filter %.yaml %.yml,$(PROFILE)),$(word 2,$(PROFILE))),)
$(error no profile '$(PROFILE)': give one file, and one whose path has no space)
endif
# By subst: to filter, two names are two words and % stands for anything.
ifeq ($(strip $(foreach name,$(PROFILES) $(wildcard $(FILE)),$(if $(subst <$(name)>,,<$(PROFILE)>),,there))),)
NEAREST = $(shell $(PYTHON) -c 'import difflib, sys; \
	print(*("did you mean %r?" % name for name in difflib.get_close_matches(*sys.argv[1:2], sys.argv[2:], 1, 0.5)))' \
	$(call quoted,$(PROFILE)) $(PROFILES))
$(error no profile '$(PROFILE)'; $(strip $(NEAREST) valid: $(PROFILES)))
endif
endif

# First what the notebooks show, all of it at once; then they mostly draw, several at a time.
# --nolock: a run that was killed must not block the next one; the Snakefile has a lock that dies with its process.
# --rerun-incomplete: a notebook that was interrupted runs again and finds its finished and half-finished artefacts.
reproduce: .venv/.installed
	$(VENV_PYTHON) -m subnet_utils.shards $(call quoted,$(PROFILE)) all
	$(VENV_PYTHON) -m snakemake --cores $(CORES) --config profile=$(call quoted,$(PROFILE)) made=1 \
		--nolock --rerun-incomplete --quiet host progress reason
	@$(VENV_PYTHON) -m subnet_utils.report $(call quoted,$(NAME))

# All that a static host needs, in site/<profile>/; the network that a reader takes apart is trained if the zoo has none.
site: .venv/.installed
	@$(VENV_PYTHON) -m subnet_utils.zoo unpack
	$(VENV_PYTHON) -m subnet_utils.papers.break_it_down.network_page $(call quoted,$(PROFILE))
	$(VENV_PYTHON) -W ignore -m pdoc subnet_utils $(addprefix subnet_utils.,core masks models statistics tasks) \
		'!.*(papers\.|__main__)' -d markdown -t docs/api -o $(call quoted,site/$(NAME)/api)
	$(VENV_PYTHON) -m subnet_utils.report $(call quoted,$(NAME))

# The page of the notebook lies beside the report, which is made from the committed figures and tables.
show: runs/laptop/00c_zoo.ipynb
	@$(VENV_PYTHON) -m subnet_utils.report laptop
	@echo 'page       $(CURDIR)/site/laptop/00c_zoo.html'
	@$(VENV_PYTHON) -m webbrowser -t 'file://$(CURDIR)/site/laptop/00c_zoo.html'

runs/laptop/00c_zoo.ipynb: .venv/.installed notebooks/00c_zoo.ipynb $(wildcard zoo/*/card.json)
	@mkdir -p $(@D)
	@$(VENV_PYTHON) -m subnet_utils.zoo unpack  # so that all notebooks find on `laptop` what is there
	$(VENV_PYTHON) -m subnet_utils.execute notebooks/00c_zoo.ipynb runs/00c_zoo.ipynb \
		--no-progress-bar --log-level WARNING
	@mv runs/00c_zoo.ipynb $@

push pull: .venv/.installed
	@test -n $(call quoted,$(REPO)) || { echo 'name a dataset on the model hub: make $@ REPO=OWNER/NAME' >&2; exit 1; }
	$(VENV_PYTHON) -m subnet_utils.core.hub $@ $(call quoted,$(REPO))

cost: .venv/.installed
	@mkdir -p $(call quoted,runs/$(NAME))
	$(VENV_PYTHON) -m subnet_utils.execute notebooks/11_cost_of_a_study.ipynb \
		$(call quoted,runs/$(NAME)/11_cost_of_a_study.ipynb) -f $(call quoted,$(FILE)) \
		--no-progress-bar --log-level WARNING --stdout-file - --stderr-file -

rehearse: .venv/.installed
	$(VENV_PYTHON) -m subnet_utils.cost.rehearse $(call quoted,$(PROFILE)) $(ARGS)

# The tests of the package side by side, a file at a time; then the notebooks, as `reproduce` does it: first all that
# they show, which keeps all cores busy, then several at a time.
test: .venv/.installed
	$(VENV_PYTHON) -m pytest tests --numprocesses auto --dist loadfile --no-loadscope-reorder
	$(VENV_PYTHON) -m subnet_utils.shards check all
	$(VENV_PYTHON) -m pytest notebooks --numprocesses auto --dist loadfile

lab: .venv/.installed
	$(VENV_PYTHON) -m jupyterlab $(if $(filter 0,$(shell id -u)),--allow-root) \
		--LabApp.default_url=/lab/tree/notebooks $(ARGS)

lint: .venv/.installed
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .

# --no-compile: Python compiles what it imports, when it does; to compile all of it takes longer than to install it.
.venv/.installed: requirements.lock pyproject.toml
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo 'Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3.11' >&2; exit 1; }
ifneq ($(UV),)
	'$(UV)' sync --locked --inexact --python '$(PYTHON)' --extra companion --extra test
else
	'$(PYTHON)' -m venv .venv
	$(VENV_PYTHON) -m pip install --no-compile -r requirements.lock
	$(VENV_PYTHON) -m pip install --no-deps --no-build-isolation -e .
endif
	@touch $@
