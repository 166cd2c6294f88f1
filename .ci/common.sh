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
