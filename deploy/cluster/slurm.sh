#!/usr/bin/env bash
# A simulation on nodes of a Slurm cluster: sbatch deploy/cluster/slurm.sh study.toml [OPTION ...]
# pate_fed lies in a virtual environment on a disk that all nodes have; PATE_FED_VENV names it. Ray starts on every
# node of the allocation, with a token of this job's own, and ends with it.
#SBATCH --job-name=pate-fed
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=32G
#SBATCH --time=04:00:00
#SBATCH --exclusive
set -euo pipefail

study=$(realpath "${1:?usage: sbatch slurm.sh study.toml [OPTION ...]}")
shift
# shellcheck disable=SC1091
source "${PATE_FED_VENV:-$HOME/pate-fed}/bin/activate"

# The token: in a file that this user alone reads, on a disk that all nodes have; in no command line.
umask 077
secret=$(mktemp -d "$HOME/.pate-fed-ray.XXXXXX")
trap 'rm -rf "$secret"' EXIT
python -c 'import secrets; print(secrets.token_hex(32), end="")' > "$secret/token"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$secret/token" RAY_USAGE_STATS_ENABLED=0
unset RAY_AUTH_TOKEN RAY_ADDRESS

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
port=$((20000 + SLURM_JOB_ID % 10000))
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')
cpus=${SLURM_CPUS_PER_TASK:-1}
gpus=${SLURM_GPUS_ON_NODE:-0}

start_ray() {  # NODE OPTION ...
    local node=$1
    shift
    srun --nodes=1 --ntasks=1 --overlap --nodelist="$node" \
        ray start --block --disable-usage-stats --num-cpus="$cpus" --num-gpus="$gpus" "$@" &
}

start_ray "$head" --head --node-ip-address="$address" --port="$port" --include-dashboard=false
# Each node is waited for: the study takes those that are there when it begins.
for number in $(seq 1 "${#nodes[@]}"); do
    for _ in $(seq 1 60); do
        found=$(python - "$address:$port" 2> "$secret/errors" <<'PY' || true
import sys
import ray

ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(sum(node["Alive"] for node in ray.nodes()))
PY
        )
        [ "${found:-0}" -ge "$number" ] && break
        sleep 2
    done
    if [ "${found:-0}" -lt "$number" ]; then
        echo "node $number of ${#nodes[@]} does not join Ray" >&2
        exit 1
    fi
    if [ "$number" -lt "${#nodes[@]}" ]; then
        start_ray "${nodes[$number]}" --address="$address:$port"
    fi
done

flower-simulation --config "$study" --ray-address "$address:$port" "$@"
