import re

from loadgen.page_style import SCRIPT, STYLE


def test_every_colour_that_is_named_is_there_in_light_and_dark():
    used = set(re.findall(r"var\(--(\w+)\)", STYLE))
    light, dark = STYLE.split("@media(prefers-color-scheme:dark)")[:2]
    dark = dark[: dark.index("}}")]
    assert used
    assert used <= set(re.findall(r"--(\w+):", light))
    assert used <= set(re.findall(r"--(\w+):", dark))


def contrast(one, other):
    def luminance(colour):
        if len(colour) == 4:
            colour = "#" + "".join(2 * c for c in colour[1:])
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (
            c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dim, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dim + 0.05)


def test_texts_are_legible_on_page_and_card_in_light_and_dark():
    for block in re.findall(r":root\{([^}]*)\}", STYLE):
        colours = dict(re.findall(r"--(\w+):(#\w+)", block))
        for name in ("fg", "dim", "bad", "warn", "good", "link"):
            for ground in ("bg", "card"):
                assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)


def test_the_script_names_no_address():
    assert "http" not in SCRIPT
