#!/bin/bash
# A recipe on one node with torchrun, where Accelerate's launcher is not wanted. Plain data parallel: every GPU has the
# full model. ZeRO and FSDP need their accelerate config and accelerate launch. Ctrl-C saves no checkpoint here.
# Command: bash recipes/launch/torchrun.sh models/qwen2.5-0.5b-gsm8k 2 [--learning_rate 2e-6 ...]
set -euo pipefail

torchrun --standalone --nproc_per_node "$2" \
  -m offleash.train --config "$1" --resume "${@:3}"
