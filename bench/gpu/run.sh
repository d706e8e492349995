#!/bin/sh
# Measures an NVIDIA GPU: bench/gpu/run.sh [BINARY] OUTDIR [ARGUMENT...]
#
# Writes OUTDIR/gpu.json and prints a table. Ends within 8 minutes. BINARY is the program transload-gpu-bench,
# else the file of that name beside this script. The machine needs NVIDIA's driver and a shell, and python3 with
# PyTorch or CuPy if those are to take part. Where there is cargo:
#
#     TRANSLOAD_COMMIT=$(git describe --always --abbrev=40 --dirty) \
#         cargo build --release -p transload-gpu-bench
#     cp target/release/transload-gpu-bench .
#
# Further arguments go to the program; --help lists them. Exit codes: 0 ok, 2 usage, 3 no driver or device,
# 4 bytes differ, 5 the device failed, 124 or 137 it did not end by itself (OUTDIR/gpu.json then holds all cases
# until there, and says "complete": false).
set -eu

usage() {
    echo "usage: $0 [BINARY] OUTDIR [ARGUMENT...]" >&2
    exit 2
}

here=$(dirname "$0")
[ $# -ge 1 ] || usage
case $1 in
-h | --help)
    # The comment that this file begins with.
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
esac
if [ -f "$1" ]; then
    binary=$1
    shift
else
    binary=$here/transload-gpu-bench
fi
[ $# -ge 1 ] || usage
out=$1
shift
[ -x "$binary" ] || { echo "error: there is no program $binary; $0 --help says how it is built" >&2; exit 2; }
mkdir -p "$out"

# The program ends by itself some time before; this is for a driver that never returns.
limit=475
hard() {
    if command -v timeout >/dev/null; then
        timeout --kill-after=4 "$limit" "$@"
    else
        "$@"
    fi
}

status=0
hard "$binary" --json "$out/gpu.json" "$@" || status=$?
case $status in
124 | 137) echo "error: it did not end within $limit s; $out/gpu.json has what was done until there" >&2 ;;
esac
exit "$status"
