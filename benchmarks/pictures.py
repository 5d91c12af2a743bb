"""Takes the screenshots in docs/ of the attention viewer:

    python -m benchmarks.pictures default RUN      # a run of train.py
    python -m benchmarks.pictures induction RUN    # a run of train.py experiment=induction
    python -m benchmarks.pictures explore RUN      # the page of explore.py, for a default run
    python -m benchmarks.pictures walk RUN         # a walk of docs/explore.md, by the run's name
    python -m benchmarks.pictures real smollm2     # the questions of docs/real_models.md
    python -m benchmarks.pictures steps RUN        # its imported steps

The pictures of a default run need its report: python scripts/analyze.py checkpoint=RUN.
"""

import io
import sys
import time
from pathlib import Path
from urllib.parse import quote

from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.browser import chromium, explore, open_tab, painted, tensorboard
from headscope.analysis.headers import SNAPSHOTS, read_header

DOCS = Path(__file__).resolve().parents[1] / "docs"
SIZE = 1400, 1040
"""The size of the browser window. Without the browser's own bars, the page is about 1400 x 900."""
WALKS = {
    "induction": ("QxBnEaPfLQxBnEaPfL", "walk_induction.png"),
    "names": ("ETT=", "walk_names.png"),
    "gpt": ("Anna and Tom went to the garden. Anna gave a ball to", "walk_tom.png"),
}
"""The text and the picture of each walk."""
REAL = {
    "real_paris.png": {"x.text": "The capital of France is", "x.second": "The capital of Italy is"}
    | {"x.copies": "L23H4@4", "v.head": "L23H4"},
    "real_induction.png": {"x.text": "Dr Quiggle met Mrs Tweep. Then Dr Qu", "v.head": "L18H6"},
    "real_chat.png": {"x.text": "What is the capital of France?", "x.question": "true"}
    | {"x.temperature": "0", "v.head": "L23H4"},
}
"""The state of the page for each picture of a real model."""


def default(run: Path) -> None:
    """attention.html with a token selected, and the tab as it opens."""
    with tensorboard(run) as address, chromium(*SIZE) as browser:
        browser.get((run / "analysis" / "attention.html").resolve().as_uri())
        painted(browser)
        painted(browser, 'document.querySelectorAll(".tokens [data-token]")[25].click()')
        browser.save_screenshot(str(DOCS / "page.png"))
        open_tab(browser, address)
        browser.save_screenshot(str(DOCS / "tab.png"))


def induction(run: Path) -> None:
    """Two views that answer which head looks at the previous token since when, a GIF of the steps,
    the step where the name previous-token first occurs, and the step where the model first
    predicts a token, with the head that adds most to it."""
    events = EventAccumulator(str(run / "tensorboard"), {"tensors": 0}).Reload().Tensors(SNAPSHOTS)
    headers = [read_header(event.tensor_proto.string_val[0]) for event in events]
    first = next(header for header in headers if "previous-token" in header["names"])
    layer, head = divmod(first["names"].index("previous-token"), first["heads"])
    frames = []
    with tensorboard(run) as address, chromium(*SIZE) as browser:
        open_tab(browser, address, metric="previous")
        browser.save_screenshot(str(DOCS / "question_1.png"))
        open_tab(browser, address, metric="induction", step=first["step"])
        browser.save_screenshot(str(DOCS / "induction.png"))
        for header in headers[:: max(1, len(headers) // 20)]:
            open_tab(browser, address, metric="induction", step=header["step"])
            frames.append(browser.get_screenshot_as_png())
        open_tab(browser, address, metric="previous", step=first["step"], head=f"L{layer}H{head}")
        browser.save_screenshot(str(DOCS / "question_2.png"))
        *last, _ = headers[-1]["next"]  # nothing follows the last token
        token = max(range(len(last)), key=lambda each: last[each])
        learned = next(each for each in headers if each["next"][token] >= 0.5)
        open_tab(browser, address, token=token, step=learned["step"])
        painted(browser, 'document.querySelector(".heads .row").click()')
        browser.save_screenshot(str(DOCS / "next_token.png"))
    write_gif(frames, DOCS / "tab_steps.gif")


def explore_page(run: Path) -> None:
    """A picture of the page of explore.py, and a GIF: type, write, and switch a head off."""
    frames = []
    field = "document.querySelector('.editor-card textarea')"
    typed = f"{field}.value = arguments[0]; {field}.dispatchEvent(new Event('input'))"
    press = "[...document.querySelectorAll('button')].find((b) => b.textContent === arguments[0])"
    phrase = "Gentlemen of the Senate and of the House of"
    with explore(run) as address, chromium(*SIZE) as browser:
        browser.get(address)

        def show(action: str, *arguments: str, seconds: float = 0.3) -> None:
            painted(browser, action, *arguments)
            time.sleep(seconds)
            frames.append(browser.get_screenshot_as_png())

        for end in range(9, len(phrase), 5):
            show(typed, phrase[:end])
        show(typed, phrase)
        time.sleep(0.5)  # the head that decides is opened
        frames += [browser.get_screenshot_as_png()] * 4
        show("document.querySelector('.switches-card input[value=zero]').click()", seconds=1)
        browser.save_screenshot(str(DOCS / "explore.png"))
        frames += frames[-1:] * 5
        show(f"{press}.click()", "all on")
        for _ in range(14):
            show(f"{press}.click()", "+ 1 token")
    write_gif(frames, DOCS / "explore.gif", width=800)


def walk(run: Path) -> None:
    """Why the head that decides looks where it looks, and then the first head that it reads."""
    text, picture = WALKS[run.name.partition("_")[0]]
    press = "[...document.querySelectorAll('button')].find((b) => b.textContent === arguments[0])"
    with explore(run) as address, chromium(*SIZE) as browser:
        browser.get(f"{address}#x.text={quote(text)}")
        painted(browser)
        time.sleep(1)  # the head that decides is opened
        follow = "document.querySelector('.pairs .row:nth-child(2) button')?.click()"
        for action in (f"{press}.click()", follow):
            painted(browser, action, "Why there?")
            time.sleep(0.5)
        browser.save_screenshot(str(DOCS / picture))


def real(run: Path) -> None:
    """Pages of a real model, such as `smollm2`."""
    press = "[...document.querySelectorAll('button')].find((b) => b.textContent === arguments[0])"
    with explore(run) as address, chromium(*SIZE) as browser:
        for name, state in REAL.items():
            browser.get("about:blank")
            browser.get(f"{address}#" + "&".join(f"{k}={quote(v)}" for k, v in state.items()))
            painted(browser)
            while "Measuring" in browser.find_element("css selector", ".overview").text:
                time.sleep(1)
            while browser.find_elements("css selector", ".asking"):
                time.sleep(1)
            if "chat" in name:
                painted(browser, f"{press}.click()", "▶ Write")
                time.sleep(5)
            browser.save_screenshot(str(DOCS / name))


def steps(run: Path) -> None:
    """The tab at the step where L1H0 has become a previous-token head."""
    with tensorboard(run) as address, chromium(*SIZE) as browser:
        open_tab(browser, address, metric="previous", step=200, head="L1H0")
        browser.save_screenshot(str(DOCS / "real_steps.png"))


def write_gif(frames: list[bytes], file: Path, width: int = 860, milliseconds: int = 350) -> None:
    """Write screenshots as an animated GIF with one palette."""
    images = [Image.open(io.BytesIO(frame)).convert("RGB") for frame in frames]
    small = [each.resize((width, each.height * width // each.width)) for each in images]
    palette = small[len(small) * 2 // 3].quantize(200)
    first, *others = [each.quantize(palette=palette, dither=Image.Dither.NONE) for each in small]
    durations = [milliseconds] * len(others) + [2500]
    first.save(file, save_all=True, append_images=others, duration=durations, loop=0, optimize=True)


if __name__ == "__main__":
    kinds = {"default": default, "induction": induction, "explore": explore_page, "walk": walk}
    kinds |= {"real": real, "steps": steps}
    if len(sys.argv) != 3 or sys.argv[1] not in kinds:
        sys.exit(f"usage: python -m benchmarks.pictures {'|'.join(kinds)} RUN")
    kinds[sys.argv[1]](Path(sys.argv[2]))
