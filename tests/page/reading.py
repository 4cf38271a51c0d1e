"""Scripts that tell of a page how well its text can be read."""

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
