#!/bin/bash
# A recipe over several nodes of 8 GPUs with Slurm; flags after the recipe go to training.
# Command: sbatch --nodes 4 recipes/launch/slurm.sh models/qwen2.5-32b-dapo [--learning_rate 2e-6 ...]
#          To continue an interrupted job, submit the same line again.
#SBATCH --job-name offleash
#SBATCH --ntasks-per-node 1
#SBATCH --gpus-per-node 8
#SBATCH --cpus-per-task 64           # for 8 ranks, their engines and the verifiers; Slurm's default is 1
#SBATCH --exclusive
#SBATCH --time 48:00:00
#SBATCH --signal INT@7200            # two hours before the end: a checkpoint after the last update of the rollout, and a
#                                      measurement if one is due, then the run ends
set -euo pipefail

export HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun --cpus-per-task "$SLURM_CPUS_PER_TASK" --kill-on-bad-exit bash -c '
  exec offleash train --config_file recipes/accelerate/nodes_zero3.yaml \
    --num_machines "$SLURM_NNODES" --num_processes "$((8 * SLURM_NNODES))" --machine_rank "$SLURM_NODEID" \
    --main_process_ip "$HEAD" --main_process_port 29500 \
    --resume --config "$@"
' bash "$@"
