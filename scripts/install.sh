#!/usr/bin/env bash
# Makes .venv with the package, its extras and the pinned versions; does nothing where that is done already.
# uv where it is present, plain venv and pip otherwise. PYTHON names an interpreter, NO_UV=1 leaves uv alone,
# EXTRAS names other extras than all of them. Extras that an earlier call installed stay.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
extras=${EXTRAS-local,agentscope,frozenlake,data,debug,dev}
stamp="$venv/astune-installed" # two lines: what the environment was made from, and its extras
constraints=requirements/constraints.txt
torch_for_cpus=https://download.pytorch.org/whl/cpu

fail() {
    printf 'install: %s\n' "$1" >&2
    exit 1
}

find_python() {
    local candidate found=""
    for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$candidate"
            return
        elif [ -n "${PYTHON:-}" ]; then
            break
        fi
        if version=$("$candidate" --version 2>/dev/null); then found="$found $candidate is $version;"; fi
    done
    if [ -n "${PYTHON:-}" ]; then fail "PYTHON=$PYTHON is no Python of version 3.11 or newer"; fi
    fail "Python 3.11 or newer is needed;${found:- none was found;} on Debian or Ubuntu: apt install python3.11 python3.11-venv"
}

# uv reads none of pip's settings: pass on where packages are.
tell_uv() {
    local setting value
    while IFS='=' read -r setting value; do
        value=$(printf '%s' "$value" | sed -e "s/^'//" -e "s/'$//" -e 's/\\n/ /g')
        case ${setting##*.} in
            find-links) export UV_FIND_LINKS="${UV_FIND_LINKS:-$(printf '%s' "$value" | xargs | tr ' ' ',')}" ;;
            index-url) export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$value}" ;;
            extra-index-url)
                # pip takes the best version of all indexes, uv by default the first index that has the name
                export UV_INDEX="${UV_INDEX:-$(printf '%s' "$value" | xargs)}"
                export UV_INDEX_STRATEGY="${UV_INDEX_STRATEGY:-unsafe-best-match}"
                ;;
            cert) export SSL_CERT_FILE="${SSL_CERT_FILE:-$value}" ;;
        esac
    done <<<"$pip_settings"
}

# PyPI's torch for Linux brings gigabytes of CUDA. Without an NVIDIA GPU, install PyTorch's build for CPUs before the rest;
# where PyTorch's index cannot be reached, PyPI's is taken after all. Indexes of one's own decide for themselves.
install_torch_for_cpus() {
    local torch
    torch=$(sed -n 's/^\(torch==[^ ;]*\).*/\1/p' "$constraints")
    if [[ ",$extras," != *,local,* || -z "$torch" || "$(uname -s)" != Linux ]] || nvidia-smi >/dev/null 2>&1; then return; fi
    if [[ "$pip_settings" == *index-url=* || "$pip_settings" == *find-links=* ]] ||
        [ -n "${UV_INDEX:-}${UV_DEFAULT_INDEX:-}${UV_FIND_LINKS:-}${UV_TORCH_BACKEND:-}" ]; then
        return
    fi
    echo "install: no NVIDIA GPU found, so $torch is PyTorch's build for CPUs, without CUDA" >&2
    if [ -n "$uv" ]; then
        "$uv" pip install --quiet --python "$venv/bin/python" --no-deps --default-index "$torch_for_cpus" "$torch"
    else
        "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --retries 1 --timeout 15 \
            --no-deps --index-url "$torch_for_cpus" "$torch"
    fi || echo "install: $torch_for_cpus has no answer; torch comes from PyPI, with CUDA: gigabytes more" >&2
}

recipe=$(cat pyproject.toml "$constraints" scripts/install.sh | cksum)
{ read -r made_from && read -r installed; } 2>/dev/null <"$stamp" || made_from="" installed=""
missing=""
for extra in ${extras//,/ }; do
    if [[ ",$installed," != *",$extra,"* ]]; then missing=1; fi
done
if [ -x "$venv/bin/astune" ] && [ -z "$missing" ] && [ "$made_from" = "$recipe" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    exit 0
fi

python=$(find_python)
uv=""
if [ -z "${NO_UV:-}" ]; then uv=$(command -v uv || true); fi
echo "install: $("$python" --version) at $python, with ${uv:-pip}, into $venv; the first time takes some minutes" >&2
if [ -d "$venv" ] && ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "install: $venv is not usable, it is replaced" >&2
    rm -rf "$venv"
    installed=""
fi
for extra in ${installed//,/ }; do
    if [[ ",$extras," != *",$extra,"* ]]; then extras="${extras:+$extras,}$extra"; fi
done
package=".${extras:+[$extras]}"
pip_settings=$("$python" -m pip config list 2>/dev/null || true)

if [ -n "$uv" ]; then
    tell_uv
    if [ ! -d "$venv" ]; then "$uv" venv --quiet --python "$python" "$venv"; fi
    install_torch_for_cpus
    "$uv" pip install --python "$venv/bin/python" --constraint "$constraints" --editable "$package"
else
    if [ ! -d "$venv" ]; then
        if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
            fail "$python has no venv module; on Debian or Ubuntu: apt install python$version-venv"
        fi
        "$python" -m venv "$venv"
    elif ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then # made by uv before
        "$venv/bin/python" -m ensurepip >/dev/null
    fi
    install_torch_for_cpus
    "$venv/bin/python" -m pip install --disable-pip-version-check --constraint "$constraints" --editable "$package" |
        { grep -E '^ +Downloading .*[MG]B' || true; } # the large ones show that it is still running; errors are on stderr
fi
if [ ! -e "$venv/bin/ray" ]; then cp scripts/ray_stand_in.sh "$venv/bin/ray"; fi # `ray stop` in a line is no error
printf '%s\n%s\n' "$recipe" "$extras" >"$stamp"
echo "install: done" >&2
