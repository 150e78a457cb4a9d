#!/usr/bin/env bash
# Makes .venv with the package, its extras and the pinned versions; does nothing where that is done already.
# uv where it is present, plain venv and pip otherwise. PYTHON names an interpreter, NO_UV=1 leaves uv alone,
# EXTRAS names other extras than all of them.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
extras=${EXTRAS-local,agentscope,frozenlake,dev}
package=".${extras:+[$extras]}"
stamp="$venv/astune-installed"
constraints=requirements/constraints.txt

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

# What pip was told about where packages are, told to uv as well, which reads none of pip's settings.
tell_uv() {
    local python=$1 setting value
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
    done < <("$python" -m pip config list 2>/dev/null || true)
}

wanted=$( (cat pyproject.toml "$constraints" scripts/install.sh && echo "$extras") | cksum)
if [ -x "$venv/bin/astune" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    exit 0
fi

python=$(find_python)
uv=""
if [ -z "${NO_UV:-}" ]; then uv=$(command -v uv || true); fi
echo "install: $("$python" --version) at $python, with ${uv:-pip}, into $venv; the first time takes some minutes" >&2
if [ -d "$venv" ] && ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "install: $venv is not usable, it is made anew" >&2
    rm -rf "$venv"
fi

if [ -n "$uv" ]; then
    tell_uv "$python"
    if [ ! -d "$venv" ]; then "$uv" venv --quiet --python "$python" "$venv"; fi
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
    "$venv/bin/python" -m pip install --disable-pip-version-check --constraint "$constraints" --editable "$package" |
        { grep -E '^ +Downloading .*[MG]B' || true; } # the large ones show that it goes on; errors are on stderr
fi
printf '%s\n' "$wanted" >"$stamp"
echo "install: done" >&2
