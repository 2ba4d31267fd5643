#!/bin/sh
# Small pictures with GNU parallel. pictures.yaml is the same for Asterism.
mkdir -p small
parallel --jobs 4 --retries 2 --joblog jobs.log --resume-failed \
    'head -c 10 {} > small/{/}' :::: pictures.list # stands for convert
ls small | wc -l
