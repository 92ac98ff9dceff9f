# Needs Rust, Python 3.9 or newer, gcc and make; the rest is fetched, pinned and checked, into .venv and .cache. Tests
# need g++ too, which root gets installed and others are told to.

PYTHON ?= python3
FETCH  := $(PYTHON) scripts/fetch.py
# Environments: of the clients that the demonstration uses, and of the tests.
CLIENTS := .venv/bin/python
VENV   := .cache/tests/bin/python
# Where cargo puts the release binary, wherever its target directory is.
BINARY  = $(shell $(PYTHON) -c 'import sys; sys.path.insert(0, "scripts"); from server import binary; print(binary())')

.DEFAULT_GOAL := help
.PHONY: help build setup tools models demo demo-models serve test nightly kernels kube-test gpu-test gpu-kit conformance fuzz soak lint bench bench-frontend compare-policies compare-triton compare-text scaling figures policies timelines page overload attacks packages package-test image release aarch64 book clean

help:
	@echo "make demo      serve a sentence encoder, and compare how an LSTM is batched"
	@echo "make test      cargo test, the CUDA kernels through their compiler, then real clients against the built server"
	@echo "make nightly   what takes long as well: lean builds, long runs, the kit for cards, measuring scripts, figures, ONNX's tests, fuzzers"
	@echo "make kernels   compile the CUDA kernels for every architecture, and print their registers; needs no GPU. ALL=1: those of every example network, minutes"
	@echo "make kube-test the manifests of deploy/ against Kubernetes' API server, which Go builds first: 10 min, 5 GB meanwhile"
	@echo "make gpu-test  tests and benchmarks of CUDA cards on a card; gpu-kit packs them into one file, for a machine with a card alone"
	@echo "make conformance  ONNX's backend tests through the server, over both protocols, compared with ONNX Runtime"
	@echo "make fuzz      every parser for SECONDS=60 each, from the seeds in tests/corpus"
	@echo "make soak      random clients for MINUTES=60; counters must add up"
	@echo "make serve     keep the example repository running on ports 8000 to 8002"
	@echo "make build     the release binary, with ONNX Runtime's library beside it"
	@echo "make models    the example repository in model_repository/"
	@echo "make tools     perf_analyzer and grpcurl in .cache/bin, where they can be had"
	@echo "make bench     the benchmarks; bench-frontend writes its table and plot"
	@echo "make compare-policies  auto beside the best window of a sweep, and the simulator beside both; make timelines draws policies"
	@echo "make compare-text  texts to vectors, beside fastembed and a plain loop over ONNX Runtime"
	@echo "make compare-triton  beside exact lengths, as a Triton serves them; with a Triton at hand: scripts/compare_triton.py --peer host:port"
	@echo "make scaling   lanes, shards and huge pages beside each other; scripts/contention.py counts waits for locks, as root"
	@echo "make policies  every policy beside auto on all tables of devices, simulated. ONLY=titan-rtx/unet,…: some models"
	@echo "make figures   the papers' figures from the simulator, which every machine draws alike. ONLY=batchmaker-7,…: some; CHECK=1: compares a part with the kept tables"
	@echo "make page      the picture of the server's page, from a headless browser"
	@echo "make overload  64 clients against a queue limit of 32 for a minute"
	@echo "make attacks   hostile clients, broken models and a vanishing repository, and what each costs others"
	@echo "make packages  a wheel and a Debian package in .cache/packages; package-test serves from each, and from the image's tree"
	@echo "make image     the image as an archive for docker load, podman load, ctr image import; needs root. PROGRAMS=arm64=FILE adds that of AArch64"
	@echo "make release VERSION=x.y.z  the packages, the image, the chart and their sums in target/release-x.y.z; needs root"
	@echo "make aarch64   a wheel and the image for AArch64, served under emulation; needs rustup and Debian, installs compilers and QEMU as root"
	@echo "make lint      rustfmt and clippy, warnings as errors; words, links; licences and sources of dependencies"
	@echo "make book      the pages of docs as a book in target/book"
	@echo "make clean     remove what make made: target, .venv, .cache, generated models"

setup:
	@$(FETCH) tests runtime minilm

tools:
	@$(FETCH) perf_analyzer grpcurl

# Cargo compiles while the rest is fetched. If something cannot be fetched, the reason comes last.
build:
	cargo build --package paternoster --release & building=$$!; $(FETCH) venv runtime minilm || { kill $$building; exit 1; }; wait $$building
	@$(PYTHON) -c 'import sys; sys.path.insert(0, "scripts"); import fetch; fetch.beside(sys.argv[1])' "$(BINARY)"

models: build
	"$(BINARY)" models --out model_repository --minilm .cache/minilm --set examples

# The demonstration makes only the models that it serves.
demo-models: build
	@$(CLIENTS) scripts/demo.py --models

demo: demo-models
	@$(CLIENTS) scripts/demo.py

serve: models
	exec "$(BINARY)" serve --model-repository model_repository

test:
	@$(PYTHON) scripts/test.py

# Before a release: what takes too long for every change.
nightly: lint
	RUSTDOCFLAGS=-Dwarnings cargo doc --no-deps
	cargo clippy --no-default-features --features fuzzing -- -D warnings
	@$(PYTHON) scripts/test.py --nightly

# With ALL=1 they are those that plans of all example networks generate.
kernels:
	@$(PYTHON) $(if $(ALL),scripts/check_kernels.py --all,scripts/test.py --only kernels)

kube-test: setup
	@CI=1 PYTHONDONTWRITEBYTECODE=1 $(VENV) -m pytest -c tests/python/pytest.ini tests/python/test_api_server.py

gpu-test: setup
	@$(PYTHON) scripts/gpu.py test

gpu-kit: setup
	@$(PYTHON) scripts/gpu.py kit .cache/paternoster-gpu-kit

# Fetches ONNX's own tests, and ONNX Runtime as a Python package, into .cache the first time.
conformance: build
	@$(FETCH) conformance
	@.cache/conformance/bin/python scripts/conformance.py

# Coverage-guided, on stable Rust: needs a C++ compiler. What it finds is kept in the target directory.
SECONDS = 60
fuzz:
	@$(PYTHON) scripts/fuzz.py $(if $(RUNS),--runs $(RUNS),--seconds $(SECONDS))

MINUTES = 60
soak: build setup
	@$(VENV) scripts/soak.py --minutes $(MINUTES)

# Empty where clippy checks what is compiled for the tests, as in .ci/run.
CLIPPY = cargo clippy --all-targets -- -D warnings
lint:
	cargo fmt --all --check
	cargo fmt --check --manifest-path tests/fuzz/Cargo.toml
	python3 scripts/check_imports.py cli $(wildcard crates/*)
	python3 scripts/check_dependencies.py
	python3 scripts/check_names.py
	@$(PYTHON) scripts/check_text.py
	@$(PYTHON) scripts/check_rust_version.py
	@$(PYTHON) scripts/check_licenses.py
	$(CLIPPY)

# The first time cargo compiles mdbook for it, a few minutes.
book:
	@$(PYTHON) scripts/book.py

# A wheel and a Debian package, with the licences of what is in them. The first time cargo compiles cargo-about and
# cargo-deb for them.
packages: setup
	@$(PYTHON) scripts/packages.py

# Each into an empty place, and an inference there. What needs root or Debian says so where it is left out.
package-test: packages
	@$(VENV) scripts/package_test.py

# Options of both: further programs, and where the sources are, for the image's label.
IMAGE = $(PROGRAMS:%=--program %) $(SOURCE:%=--source %)
image: setup
	@$(PYTHON) scripts/packages.py --only wheel
	@$(VENV) scripts/image_archive.py $(IMAGE)

release: setup
	@$(VENV) scripts/release.py $(VERSION) $(IMAGE)

aarch64: build setup
	@$(VENV) scripts/aarch64.py

bench: setup
	ORT_DYLIB_PATH="$(CURDIR)/.cache/onnxruntime/libonnxruntime.so" cargo bench

# The figures of docs/benchmarks/README.md, of the program that `make build` makes: cargo's own build for benchmarks has
# the features of the tests, and takes its place. Cargo runs a benchmark in its own folder, hence the full paths.
FRONTEND = PATERNOSTER="$(CURDIR)/.cache/bin/paternoster" \
	ORT_DYLIB_PATH="$(CURDIR)/.cache/onnxruntime/libonnxruntime.so" cargo bench --bench frontend --
bench-frontend: build
	@mkdir -p .cache/bin && cp "$(BINARY)" .cache/bin/paternoster
	$(FRONTEND) \
		--csv "$(CURDIR)/benches/tables/frontend-2-cores.csv" --svg "$(CURDIR)/docs/benchmarks/frontend-2-cores.svg"
	$(FRONTEND) --what traces --rounds 20 --seconds 1 --csv "$(CURDIR)/benches/tables/frontend-traces.csv"
	$(FRONTEND) --what protocols --rounds 10 --seconds 1 --csv "$(CURDIR)/benches/tables/frontend-protocols.csv"

overload: build setup
	@$(VENV) tests/python/overload.py

# The figures of docs/reliability.md, a few minutes. An older server may need more than 10 GB of memory.
attacks: build setup
	@$(VENV) scripts/attacks.py

# The tables of docs/benchmarks/cpu.md, about an hour, and the drawings of docs/policies.md.
compare-policies: build setup
	@$(VENV) scripts/compare_policies.py
	@$(VENV) scripts/compare_simulated.py

# The figures of docs/benchmarks/triton.md that need no Triton, about ten minutes.
compare-triton: build setup
	@$(VENV) scripts/compare_triton.py

# The figures of docs/benchmarks/text.md, about eight minutes.
compare-text: build
	@$(FETCH) text_peers
	@.cache/text-peers/bin/python scripts/compare_text.py

# The measured figures of docs/benchmarks/scaling.md, about ten minutes.
scaling: build setup
	@$(VENV) scripts/scaling.py

# The table of docs/benchmarks/policies.md, about five minutes.
policies:
	cargo build --package paternoster --release
	@$(PYTHON) scripts/policies.py $(if $(ONLY),--only $(ONLY))

# The papers' figures from the simulator: the plots and tables of docs/benchmarks/{lazybatching,dvabatch,batchmaker,adaptive}.md,
# where `git diff` then shows what changed. With CHECK=1 a part of the tables is drawn again and compared instead.
figures:
ifdef CHECK
	@$(PYTHON) scripts/test.py --only figures
else
	cargo build --package paternoster --release
	@$(PYTHON) scripts/figures.py $(if $(ONLY),--only $(ONLY))
endif

timelines: build setup
	@$(VENV) scripts/timelines.py

# The picture of the page in docs/timeline.md.
page: build setup
	@$(VENV) scripts/page.py

# Generated models are ignored by git, so git knows which they are.
clean:
	cargo clean
	rm -rf .venv .cache
	git clean -fdXq model_repository
