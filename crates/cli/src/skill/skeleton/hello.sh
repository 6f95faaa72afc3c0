#!/bin/sh
# Greets a person by name. A script of a skill should need few programs, ask no questions, print only its result, and
# report errors.
set -eu

if [ "$#" -ne 1 ] || [ -z "$1" ]; then
    echo "usage: hello.sh NAME" >&2
    exit 2
fi

printf 'Good morning, %s.\n' "$1"
