"""``lsmq completion``: tab completion for shells."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_INSTALL = {
    "bash": 'add to ~/.bashrc:  eval "$(lsmq completion bash)"',
    "zsh": 'add to ~/.zshrc, after compinit:  eval "$(lsmq completion zsh)"',
    "fish": "run once:  lsmq completion fish > ~/.config/fish/completions/lsmq.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_INSTALL)))
def completion(shell: str) -> None:
    """Print the script that gives SHELL tab completion, also of topic names.

    \b
      bash:  eval "$(lsmq completion bash)"    in ~/.bashrc
      zsh:   eval "$(lsmq completion zsh)"     in ~/.zshrc, after compinit
      fish:  lsmq completion fish > ~/.config/fish/completions/lsmq.fish
    """
    from lsmq.cli._root import root

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(f"# To have this always, {_INSTALL[shell]}")
    click.echo(kind(root, {}, "lsmq", "_LSMQ_COMPLETE").source())
