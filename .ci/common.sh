# Sourced by the scripts beside it.

say() { printf '%s\n' "$*" >&2; }

die() {
    say "$*"
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# Run a command as root; without a terminal sudo must not wait for a password.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif have sudo; then
        if [ -t 0 ]; then sudo -- "$@"; else sudo -n -- "$@"; fi
    else
        say "this needs root, and there is no sudo: $*"
        return 1
    fi
}

apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes \
        -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 "$@" </dev/null
}

# Never removes a package: a conflict fails, and the caller reports it.
apt_install() { apt_get install --no-install-recommends --no-remove "$@"; }

# Print a Go command that fetches the toolchain of a module by itself, as Go does from 1.21 on. An older one
# (Debian 12 has 1.19) fetches a newer toolchain as the Go module that it is, without its execute permissions.
go_command() { # go_command DIRECTORY: for the modules; $go_toolchain is the oldest that is good
    local toolchain
    if ! printf '%s\n' go1.21 "$(go env GOVERSION)" | sort --version-sort --check=quiet; then
        toolchain="golang.org/toolchain@v0.0.1-$go_toolchain.$(go env GOOS)-$(go env GOARCH)"
        GOPATH=$1 GOFLAGS=-modcacherw go mod download "$toolchain" >&2
        chmod -R a+x "$1/pkg/mod/$toolchain/bin" "$1/pkg/mod/$toolchain/pkg/tool"
        echo "$1/pkg/mod/$toolchain/bin/go"
    else
        command -v go
    fi
}
