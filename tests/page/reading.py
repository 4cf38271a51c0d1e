"""How well a page can be read: at two widths, in light and dark, by contrast and by what is cut."""

from __future__ import annotations

#: Text and background of every element that has text of its own and is seen.
CONTRAST = """() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = numbers(getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const worst = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    const other = element.closest('svg, script, .hidden-text, .skip');
    if (!own || other || !element.checkVisibility()) continue;
    const [a, b] = [numbers(getComputedStyle(element).color), behind(element)].map(light);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const name = element.className || element.tagName;
    if (ratio < 4.5) worst.push([name, ratio, element.textContent.slice(0, 40)]);
  }
  return worst;
}"""

#: Pixels by which a page is wider than its window.
WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
LOOKS = ((400, "light"), (400, "dark"), (1280, "light"), (1280, "dark"))


def readable(watched, name):
    """Fail if text of the page is cut, too faint or wider than a phone, and keep pictures.

    The four looks are of one loaded page: a page of its own for each costs a second of CPU.
    """
    page = watched.page
    cut = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(WIDE) == 0, f"{name} at {width}"
        assert page.evaluate(CONTRAST) == [], f"{name} in the {scheme}"
        assert page.locator("h1, h2, h3, h4, p, dd, li, figcaption").evaluate_all(cut) == []
        watched.shoot(f"{name}-{width}-{scheme}")
    assert page.locator("script, img, iframe, object, link, form, input, audio").count() == 0
    watched.well_behaved()
