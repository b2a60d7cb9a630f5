# shellcheck shell=bash
# Finds and installs missing Debian packages. Source it from scripts that set -u.

missing_packages=()

# The release, as os-release(5) names it: bookworm, trixie, jammy, noble.
# shellcheck source=/dev/null
os_release=$(. "${PIER_OS_RELEASE:-/etc/os-release}" 2>/dev/null && echo "${VERSION_CODENAME:-}") || true

# in_release PACKAGE RELEASE=NAME...: the name of a package in this release, or
# nothing if the release lacks it.
in_release() {
    local name=$1 other
    shift
    for other; do
        [ "${other%%=*}" != "$os_release" ] || name=${other#*=}
    done
    echo "$name"
}

# need PACKAGE COMMAND...: the package is missing unless COMMAND succeeds. COMMAND
# looks for the program or file itself, which may be installed without apt. A
# package without a name, because this release has none, is not needed.
need() {
    local package=$1
    shift
    [ -n "$package" ] || return 0
    case " ${missing_packages[*]} " in
    *" $package "*) return ;;
    esac
    "$@" >/dev/null 2>&1 || missing_packages+=("$package")
}

have() {
    command -v "$1" || [ -x "/usr/sbin/$1" ]
}

# A C library, found with pkg-config, as the build does it.
have_library() {
    command -v pkg-config && pkg-config --exists "$1"
}

# A header of a library without a pkg-config file.
have_header() {
    command -v cc && echo "#include <$1>" | cc -E -x c - -o /dev/null
}

need_for_build() {
    need meson have meson
    need ninja-build have ninja
    need gcc have cc
    need libc6-dev have_header stdlib.h
    need pkg-config have pkg-config
    need libibverbs-dev have_library libibverbs
    need libssl-dev have_library libcrypto
    need liburing-dev have_library liburing
}

# Additional packages for the tests.
need_for_tests() {
    need libcmocka-dev have_library cmocka
    need libisal-dev have_library libisal
    need g++ have c++
    need clang have clang
    need "$(in_release libclang-rt-dev bookworm=libclang-rt-14-dev jammy=libclang-common-14-dev)" have_fuzzer
    need clang-format have clang-format
    need shellcheck have shellcheck
    need mandoc have mandoc
    need man-db have man
    need abigail-tools have abidiff
    need "$(in_release libze-dev jammy=)" have_header level_zero/ze_api.h
    need libopenmpi-dev have_library ompi-c
    need openmpi-bin have mpirun
    need openssh-server have sshd
    need openssh-client have ssh
    need rsync have rsync
    need python3-matplotlib have_python_module matplotlib
    need zsh have zsh
    need fish have fish
    need iproute2 have ip
    need procps have ps
    need python3 have python3
    need python3-dev have_library python3
}

# The Python package: PyPI's packages in a virtual environment, and Debian's modules.
need_for_python() {
    need python3-pip python3 -m pip --version
    need python3-venv have_python_module ensurepip
    need python3-mpi4py have_python_module mpi4py
    need python3-numpy have_python_module numpy
    need python3-pmix have_python_module pmix
    need "$(in_release python3-torch noble=)" have_python_module torch
}

# Packages for tests/vm/guest; $1: its machine.
need_for_guest() {
    case $1 in
    amd64) need qemu-system-x86 have qemu-system-x86_64 ;;
    arm64-16k)
        need qemu-system-arm have qemu-system-aarch64
        need gcc-aarch64-linux-gnu have aarch64-linux-gnu-gcc
        # For the wheel.
        need python3-venv have_python_module ensurepip
        ;;
    esac
    need busybox-static have_static_busybox
    need cpio have cpio
    need kmod have modprobe
    need xz-utils have xz
    need patch have patch
    need make have make
    need bc have bc
    need gcc-12 have gcc-12
    need libelf-dev have_library libelf
    need ibverbs-providers have_rxe_provider
    need python3-pyverbs have_python_module pyverbs
    need iproute2 have rdma
    need procps have ps
}

# A program that finds the library with CMake.
need_for_consumer() {
    need cmake have cmake
}

# The files of a release, and packages of other systems.
need_for_packages() {
    need python3-venv have_python_module ensurepip
    need rpm have rpmbuild
}

# Wheels of NIXL come from PyPI.
need_for_wheels() {
    need python3-pip python3 -m pip --version
}

# Programs that the benchmarks compare with.
need_for_bench() {
    need ucx-utils have ucx_perftest
    need rsync have rsync
    need zsh have zsh
    need fish have fish
    need valgrind have valgrind
    need perftest have ib_write_bw
}

# What tests/strangers/build_perftest builds with.
need_for_perftest() {
    need libibumad-dev have_header infiniband/umad.h
    need libpci-dev have_header pci/pci.h
    need librdmacm-dev have_header rdma/rdma_cma.h
    need make have make
}

# Programs of others, which tests/strangers runs.
need_for_strangers() {
    need_for_perftest
    need perftest have ib_write_bw
    need ibverbs-utils have ibv_rc_pingpong
    need python3-pyverbs have_python_module pyverbs
    need ucx-utils have ucx_perftest
    need openmpi-bin have mpirun
    need "$(in_release netpipe-openmpi noble=)" have NPopenmpi
    need libfabric-bin have fi_pingpong
    # For the wheel of Mooncake.
    need python3-venv have_python_module ensurepip
    need libnuma1 have_shared_library libnuma.so.1
    need "$(in_release libcurl4t64 bookworm=libcurl4 jammy=libcurl4)" have_shared_library libcurl.so.4
}

# The guest runs busybox before any libraries are available.
have_static_busybox() {
    local program
    program=$(command -v busybox) || return
    ! ldd "$program"
}

# libibverbs loads providers by this name from its own folder.
have_rxe_provider() {
    local file
    for file in /usr/lib/*/libibverbs/librxe-*.so; do
        [ -e "$file" ] && return
    done
    return 1
}

# Debian packages Python modules for the system's interpreter only.
have_python_module() {
    /usr/bin/python3 -c "import $1"
}

have_shared_library() {
    /usr/bin/python3 -c "import ctypes; ctypes.CDLL('$1')"
}

have_fuzzer() {
    local object
    object=$(mktemp) || return
    echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return n < 0 && *d; }' |
        clang -fsanitize=fuzzer,address -x c - -o "$object"
    local status=$?
    rm -f "$object"
    return "$status"
}

# Run a command as root, or fail without asking for a password.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo -n "$@"
    else
        return 1
    fi
}

# Install the packages that need() found missing, and report failures on standard
# error. Does nothing if no package is missing.
install_missing_packages() {
    [ ${#missing_packages[@]} -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null; then
        echo "These packages are missing (Debian names): ${missing_packages[*]}" >&2
        echo "There is no apt-get on this system: install them another way, then run this again." >&2
        return 1
    fi
    if ! as_root true 2>/dev/null; then
        echo "These packages are missing, and installing them requires root (or sudo without a password):" >&2
        echo "    apt-get install ${missing_packages[*]}" >&2
        echo "Install them, then run this again." >&2
        return 1
    fi
    echo "installing: ${missing_packages[*]}"
    as_root apt-get update -qq || echo "apt-get update failed; using the existing package lists" >&2
    install_without_services "${missing_packages[@]}" && return
    echo "apt-get could not install these packages: ${missing_packages[*]}" >&2
    return 1
}

# Keep openssh-server from starting its daemon, now and at every boot: the tests need
# only the program. Services run policy-rc.d before they start (invoke-rc.d(8)), and
# its status 101 forbids the start.
install_without_services() (
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap 'as_root rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends -o Dpkg::Use-Pty=0 "$@" </dev/null || exit 1
    case " $* " in
    *" openssh-server "*)
        ! command -v systemctl >/dev/null || as_root systemctl disable --quiet ssh
        ;;
    esac
    exit 0
)
