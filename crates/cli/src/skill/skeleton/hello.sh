#!/bin/sh
# Greets whoever is named. A script of a skill should need few programs, ask nothing, print what matters, and fail loudly.
set -eu

if [ "$#" -ne 1 ] || [ -z "$1" ]; then
    echo "usage: hello.sh NAME" >&2
    exit 2
fi

printf 'Good morning, %s.\n' "$1"
