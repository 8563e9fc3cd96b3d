"""The command line. Errors are one line and exit code 2, a clean end is 0, a signal ends all (128 + its number)."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from twinspark.actors.errors import LinkLost
from twinspark.cluster.errors import Interrupted, SpawnError
from twinspark.cluster.signals import raising_signals
from twinspark.deploy.distill.settings import DistillSettings, TextSettings
from twinspark.deploy.errors import DemoModelError
from twinspark.deploy.options import add_options, common_options, options_from, validated

EXIT_USAGE = 2
EXIT_FAILED = 1
EXIT_SIGNAL = 128


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="twinspark")
def cli() -> None:
    """DSpark speculative decoding with the draft and the target in separate Ray actors."""


@cli.command()
@click.argument("prompt", required=False)
@click.option("--file", "file", type=click.Path(path_type=Path), help="jsonl of prompts (messages, prompt, or turns)")
@click.option("--raw", is_flag=True, help="plain completion: no chat template")
@click.option("--json", "as_json", is_flag=True, help="one JSON document on stdout")
@click.option("--trace", type=click.Path(path_type=Path), help="write one JSON line a round to this file")
@click.option(
    "--record", type=click.Path(path_type=Path), help="write every byte between the actors to FILE.out, FILE.in"
)
@common_options
def generate(
    prompt: str | None,
    file: Path | None,
    raw: bool,
    as_json: bool,
    trace: Path | None,
    record: Path | None,
    **values: Any,
) -> None:
    """Answer PROMPT (or stdin, or each line of --file)."""
    options = options_from(values)
    if prompt is not None and file is not None:
        raise click.UsageError("give a prompt or --file, not both")
    from twinspark.deploy.prompts import Prompt, prompt_from_stdin, prompts_from_file

    if file is not None:
        prompts = prompts_from_file(file)
    elif prompt is not None:
        prompts = [Prompt(text=prompt)]
    else:
        prompts = [prompt_from_stdin(sys.stdin)]
    from twinspark.deploy.generate import generate as run

    asyncio.run(run(options, prompts, raw=raw, as_json=as_json, trace=trace, record=record))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="one JSON document on stdout")
def probe(as_json: bool) -> None:
    """Show what this machine has: CPUs, RAM that is available now, GPUs."""
    from twinspark.cluster.probe import probe_node
    from twinspark.deploy.probe import document, show

    snapshot = probe_node()
    if as_json:
        print(json.dumps(document(snapshot)))
    else:
        show(snapshot)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="one JSON document on stdout")
@click.option(
    "--what-if", type=click.Path(path_type=Path), metavar="FILE", help="plan for a cluster described in TOML instead"
)
@click.option("--tok-per-s", type=float, help="how many pairs give so many tokens/s, where, and what stays free")
@click.option("--concurrency", type=int, help="the same for so many requests at once")
@common_options
@click.pass_context
def plan(
    called: click.Context,
    /,
    as_json: bool,
    what_if: Path | None,
    tok_per_s: float | None,
    concurrency: int | None,
    **values: Any,
) -> None:
    """Show where draft and target would go, why, and what each alternative would cost. Loads nothing."""
    from twinspark.planner.fleet_plans import Wanted

    if tok_per_s is not None and concurrency is not None:
        raise click.UsageError("give --tok-per-s or --concurrency, not both")
    wanted = None
    if tok_per_s is not None or concurrency is not None:
        wanted = Wanted(tok_per_s, concurrency)
    if what_if is None:
        options = options_from(values)
        from twinspark.deploy.plan import plan as run

        asyncio.run(run(options, wanted, as_json=as_json))
        return
    # Prices may be in the file, and are asked for there.
    options_from(values | {"objective": "speed"})
    from twinspark.deploy.plan import plan_what_if

    default = click.core.ParameterSource.DEFAULT
    given = {name: value for name, value in values.items() if called.get_parameter_source(name) != default}
    plan_what_if(what_if, given, wanted, as_json=as_json)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="one JSON document on stdout")
@common_options
def demo(as_json: bool, **values: Any) -> None:
    """Stream one real answer, then compare the placements on the same prompts."""
    from twinspark.deploy.demo import demo as run

    asyncio.run(run(options_from(values), as_json=as_json))


@cli.command("eval")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--limit", type=click.IntRange(1), help="only so many prompts of each file")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="one JSON document on stdout")
@common_options
def evaluate(files: tuple[Path, ...], limit: int | None, device: str, as_json: bool, **values: Any) -> None:
    """How the head's drafts are accepted over jsonl files of prompts, greedy and at temperature 1."""
    options = options_from(values)
    from twinspark.deploy.evaluate import evaluate as run

    asyncio.run(run(options, files, device=device, limit=limit or 0, as_json=as_json))


def _distill_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return add_options(TextSettings, add_options(DistillSettings, command))


@cli.command()
@click.option("--model", default="demo", show_default=True, help="target: a directory, a .gguf file, or 'demo'")
@click.option(
    "--corpus", type=click.Path(path_type=Path), required=True, help="folder of the texts, written if need be"
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="folder of the head")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:N; auto: a GPU if there is one")
@click.option("--json", "as_json", is_flag=True, help="one JSON document on stdout: what training.json says")
@_distill_options
def distill(model: str, corpus: Path, out: Path, device: str, as_json: bool, **values: Any) -> None:
    """Make a draft head: the target writes text, a head learns to draft it. Goes on where it was stopped."""
    texts = validated(TextSettings, {name: values.pop(name) for name in TextSettings.model_fields})
    settings = validated(DistillSettings, values)
    from twinspark.deploy.distill.run import distill_command

    distill_command(model, corpus, texts, settings, out, device=device, as_json=as_json)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `twinspark` command."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        with raising_signals():
            cli.main(args=arguments, prog_name="twinspark", standalone_mode=False)
    except click.exceptions.Exit as leave:
        sys.exit(leave.exit_code)
    except click.exceptions.NoArgsIsHelpError as help_text:
        print(help_text.format_message(), file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except click.ClickException as error:
        _fail(error.format_message(), EXIT_USAGE)
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`); what Python still holds for it must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except (ValueError, OSError) as error:
        if isinstance(error, LinkLost):
            _fail(str(error), EXIT_FAILED)
        _fail(str(error), EXIT_USAGE)
    except (DemoModelError, SpawnError) as error:
        _fail(str(error), EXIT_FAILED)
    except Interrupted as signalled:
        _fail(str(signalled), EXIT_SIGNAL + signalled.number)
    except Exception as error:
        logging.getLogger(__name__).debug("failed", exc_info=error)
        _fail(f"{type(error).__name__}: {error}", EXIT_FAILED)


def _fail(message: str, code: int) -> None:
    print("twinspark: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
