"""The process of a rank that follows: `python -m h3serve.pipeline.rank_process JSON`, started by `replica.lead`."""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import Any

import torch

from h3serve.core.errors import H3Error
from h3serve.core.request import parse_request
from h3serve.core.settings import EngineSettings
from h3serve.pipeline.engine import load_engine
from h3serve.pipeline.generator import Generator
from h3serve.pipeline.replica import STOP, UPDATE, Member, share_of
from h3serve.runtime.parallel.parallel_layout import Shape
from h3serve.runtime.parallel.process_group import Ranks
from h3serve.runtime.parallel.rank_launch import arrive
from h3serve.system.parent_death import end_with_parent

log = logging.getLogger("h3serve.rank")


def main(arguments: dict[str, Any]) -> None:
    """Load this rank's share, then work on what the first rank announces until it says stop."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first rank decides
    shape = Shape(arguments["ulysses"], arguments["tp"])
    device = torch.device(arguments["device"])
    ranks = Ranks(arguments["rank"], shape, port=arguments["port"], device=device)
    arrive(ranks.store, ranks.rank)
    ranks.open()
    member = Member(ranks)
    try:
        with member.together.request():
            settings = EngineSettings(**arguments["settings"])
            engine = load_engine(settings, share_of(settings, ranks))
    except H3Error as error:  # the first rank tells
        sys.exit(error.exit_code)
    follow(Generator(engine, replica=member), member)
    ranks.close()


def follow(generator: Generator, member: Member) -> None:
    """Requests and weight updates, one after another; a failed one was the first rank's to report."""
    while (message := member.together.listen()) != STOP:
        try:
            if UPDATE in message:
                generator.update_weights(**message[UPDATE])
            else:
                generator.generate(parse_request(message))
        except Exception as error:
            if member.together.broken:
                raise
            log.info("it ended: %s", error)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
