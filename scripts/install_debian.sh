#!/usr/bin/env bash
# Installs what ASTuner can use of Debian's or Ubuntu's packages. Nothing needs them.
#
#   bubblewrap   a second way to run model-written code in isolation (docs/en/sandbox.md), where the kernel allows this
#                user no namespaces but bubblewrap has the distribution's permission, as on some releases of Ubuntu
#   chromium     the browser that the tests of the log viewer's page drive; without it they are skipped
#   python3-doc  Python's documentation, of which `make e2e-data` makes tasks; without it, of this project's pages alone
#
# --dry-run prints the commands. Needs root, or sudo.
set -euo pipefail

packages=(bubblewrap chromium python3-doc)

command -v apt-get >/dev/null || {
    echo "install_debian: this system has no apt-get; install with its own tool: ${packages[*]}" >&2
    exit 1
}
as_root=()
if [ "$(id -u)" != 0 ]; then as_root=(sudo); fi
commands=(
    "${as_root[*]:+${as_root[*]} }apt-get update"
    "${as_root[*]:+${as_root[*]} }apt-get install --yes --no-install-recommends ${packages[*]}"
)
for command in "${commands[@]}"; do
    echo "install_debian: $command" >&2
    if [ "${1:-}" != --dry-run ]; then $command; fi
done
