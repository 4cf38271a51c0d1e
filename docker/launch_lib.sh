# shellcheck shell=bash
# What the launch.sh of every vendor has in common. A launch.sh defines `device_flags`, which adds
# to the array `flags` what its devices need, and ends with: launch VENDOR "$@"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Where the launch.sh looks for device nodes; another folder only in the tests.
# shellcheck disable=SC2034
dev=${DEV_DIR:-/dev}
flags=(--rm --init)

usage() {
    cat <<EOT
usage: docker/$vendor/launch.sh [--build] [COMMAND [ARGUMENT...]]

Runs llmb in a container ($vendor). Run directories appear in ./runs and belong to you.

    docker/$vendor/launch.sh run --precision BF16
    docker/$vendor/launch.sh --build        after a change: build the image again, and stop
    ENGINE=podman docker/$vendor/launch.sh run --batch-size auto --repeats 3

A missing image is built. ENGINE names the container engine; without it, docker or podman,
whichever is there. Variables named LLMB_* are passed on. The exit code is that of llmb; 3 also
when there is no container engine or no device.
EOT
}

# As llmb itself: one line on stderr, and 3 for what is not there on this machine.
unavailable() {
    echo "docker/$vendor/launch.sh: $1" >&2
    exit 3
}

find_engine() {
    engine=${ENGINE:-docker}
    if [[ -z ${ENGINE:-} ]] && ! command -v docker >/dev/null; then
        engine=podman
    fi
    command -v "$engine" >/dev/null ||
        unavailable "no container engine: install docker or podman, or name one with ENGINE="
    "$engine" version >/dev/null 2>&1 ||
        unavailable "$engine does not answer: is its service running, and may you use it?"
    # Asked, not guessed by the name: `docker` may be podman in disguise.
    podman=no
    if [[ $("$engine" --version) == podman* ]]; then
        podman=yes
    fi
    rootless=no
    if [[ $podman == yes && $(id -u) != 0 ]]; then
        rootless=yes
    fi
}

# need_devices HINT NODE...
need_devices() {
    local hint=$1 node
    shift
    for node in "$@"; do
        [[ -e $node ]] || unavailable "no $node on this machine: $hint"
    done
}

# device_groups NODE...: the user in the container joins the groups that own the nodes. By number:
# the container does not know the names of this machine's groups.
device_groups() {
    local gid
    if [[ $rootless == yes ]]; then
        flags+=(--group-add keep-groups) # in a user namespace, numbers mean other groups
        return
    fi
    for gid in $(stat --format %g "$@" | sort --unique); do
        flags+=(--group-add "$gid")
    done
}

common_flags() {
    local name
    mkdir -p runs
    flags+=(
        --user "$(id -u):$(id -g)"
        --mount "type=bind,source=$PWD/runs,target=/bench/runs"
    )
    if [[ $podman == yes ]]; then
        flags+=(--security-opt label=disable) # SELinux would keep it from ./runs and the devices
    fi
    if [[ $rootless == yes ]]; then
        flags+=(--userns keep-id) # the caller's uid is the caller's uid inside as well
    fi
    for name in "${!LLMB_@}"; do
        flags+=(--env "$name")
    done
    if [[ -t 0 && -t 1 ]]; then
        flags+=(--interactive --tty)
    fi
}

build() {
    "$engine" build --file "$root/docker/$vendor/Dockerfile" --tag "$image" "$root"
}

launch() {
    vendor=$1
    shift
    case ${1:-} in
        -h | --help) usage && exit 0 ;;
        '') usage >&2 && exit 2 ;;
    esac

    find_engine
    image=llmb-$vendor:$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/llmb/__init__.py")
    if [[ $1 == --build ]]; then
        shift
        build
        [[ $# -gt 0 ]] || exit 0
    fi
    device_flags # before a missing image of gigabytes is built
    common_flags
    "$engine" image inspect "$image" >/dev/null 2>&1 || build
    exec "$engine" run "${flags[@]}" "$image" "$@"
}
