"""Renders a chat template: how a model for chats wants a question to be written."""

from headscope.errors import UserError, library_errors

QUESTION = "a7c1e04b5d9f4f0c8a52"
"""Stands for the question, and does not occur in a template."""


def texts_around_question(template: str, begin: str, end: str) -> tuple[str, str]:
    """The text before and after a question of the user that the model should answer, by a template
    of Hugging Face (jinja2). `begin` and `end` are the names of the begin- and end-of-text token.

    The template may come from a stranger: it runs in jinja2's immutable sandbox. Raises UserError
    if it fails, or does not write the question once.
    """
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    # As in transformers, but without today's date, so that a question always has the same tokens.
    world = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    world.globals["raise_exception"] = refuse
    with library_errors("the chat template of this model cannot be used"):
        text = world.from_string(template).render(
            messages=[{"role": "user", "content": QUESTION}],
            add_generation_prompt=True,
            bos_token=begin,
            eos_token=end,
        )
    before, *after = text.split(QUESTION)
    if len(after) != 1:
        raise UserError("the chat template of this model does not contain the question once")
    return before, after[0]
