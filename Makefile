# The commands a newcomer needs. Each installs what it needs and leaves nothing behind.

# where cargo and system programs are, whatever kind of shell this is
export PATH := $(HOME)/.cargo/bin:$(PATH):/usr/sbin:/sbin

# farms of network namespaces need root; building does not
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.DEFAULT_GOAL := help
PREFIX ?= /usr/local
# the mdBook that `make book` installs where it is missing
MDBOOK := 0.4.52
.PHONY: help setup setup-tests build install uninstall packages packages-test test kernels proof model demo bench report book fmt lint fuzz clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing to build
	@scripts/setup

# a browser and some programs more, which no build and no demo has to wait for
setup-tests:
	@scripts/setup --tests

build: setup ## Build the release programs
	@scripts/build

# as root, who need not be able to build
install: ## Install what was built, below PREFIX (/usr/local) and DESTDIR
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install

uninstall: ## Remove what `make install` has put there
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install --undo

packages: setup ## Build a deb and an rpm, in target/packages
	@scripts/packages

packages-test: setup-tests ## Build packages, and install, run, upgrade and purge them in a bare Debian; needs root
	@scripts/packages-test

test: setup-tests ## Check formatting and lints, and run every test; farm tests need root
	@scripts/test

proof: setup-tests ## What takes longer, in an hour and a quarter: busy passes of the suite, more simulated farms, fuzzing
	@scripts/proof $(ARGS)

kernels: setup-tests ## Load the BPF programs and run a farm of each method on Debian's kernels, in guests; ARGS=--quick is quicker
	@scripts/kernels $(ARGS)

# the atomics of session tables become the model checker's, so everything is built anew, beside what else is
model: setup ## Try all orders in which a packet and whoever resizes a session table may meet
	@RUSTFLAGS="--cfg loom" cargo test -p evener-core --release --lib --target-dir target/loom model

# it shows and doesn't measure: the programs are those of the tests, which take half as long to build
demo: setup ## Show a whole farm at work, in half a minute; ARGS=--stay keeps it to play with
	@. scripts/tests-env && cargo build --workspace --exclude evener-fuzz
	@$(SUDO) target/debug/evener-lab demo $(ARGS)

bench: setup ## Measure; `make bench ARGS=--quick` is quicker
	@scripts/build --dist
	@$(SUDO) target/dist/evener-lab bench $(ARGS)

report: setup ## Repeat the papers' experiments in short form, in some minutes, and write target/report/index.html
	@scripts/build
	@for paper in dpr lccp workloads; do $(SUDO) target/release/evener-lab paper $$paper --quick --out target/report || exit 1; done
	@$(SUDO) target/release/evener-lab paper report target/report

book: setup ## Compile docs/ into target/book, with a pinned mdBook
	@mdbook --version 2>/dev/null | grep -q "v$(MDBOOK)$$" || cargo install mdbook --version $(MDBOOK) --locked
	@mdbook build

fmt: ## Format the code
	cargo fmt --all

lint: setup ## Check the code for what the compiler lets pass
	@scripts/test --lint

fuzz: setup ## Feed parser and configuration made-up bytes for a minute each
	@scripts/fuzz

clean: ## Remove what was built
	cargo clean
