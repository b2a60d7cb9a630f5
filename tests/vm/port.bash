# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# For scripts in the guest.

# port_is_up DEVICE GID: succeeds if its port is active, and one of the first entries
# of its GID table matches the pattern. Uses builtins, because starting a process is
# slow in an emulated machine.
port_is_up() {
    local port=/sys/class/infiniband/$1/ports/1 state file gid
    read -r state <"$port/state"
    [[ $state == *ACTIVE* ]] || return
    for file in "$port"/gids/[0-9]; do
        if read -r gid <"$file" && [[ $gid =~ $2 ]]; then
            return 0
        fi
    done 2>/dev/null
    return 1
}
