"""Write a pool's samples as a Hugging Face dataset, or as one JSONL or parquet file.

One row per sample, with its problem's prompt (chat messages as JSON), gold answer, metadata and all correct answers
where they are listed. `offleash import` reads all three back. Only the dataset keeps how the pool was sampled and
verified, so only a pool imported from it can be compared with the original.

examples:
    offleash export pools/base --to dataset              a dataset: datasets.load_from_disk("dataset")
    offleash export pools/base --to samples.jsonl        or samples.parquet
"""

from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.flags import command_parser
from offleash.eval.storage import is_stored, path_at


def main(argv: list[str]) -> int:
    parser = command_parser("export", __doc__)
    parser.add_argument("pool", metavar="POOL", help="folder of a pool")
    parser.add_argument("--to", required=True, metavar="DIR|FILE", help="a folder, or a .jsonl or .parquet file")
    parser.add_argument("--no-prompts", action="store_true", help="leave prompts out (images make them large)")
    options = parser.parse_args(argv)
    from offleash.eval.convert.exporter import export_samples
    from offleash.eval.pool.pool import Pool

    to = path_at(options.to)
    if is_stored(to):
        raise ConfigError(f"offleash export writes to this machine, not {options.to}: copy it then")
    say(f"offleash: exporting {options.pool}", error=True)
    rows = export_samples(Pool.open(options.pool), to, prompts=not options.no_prompts)
    say(f"{rows} samples of {options.pool} -> {options.to}")
    return 0
