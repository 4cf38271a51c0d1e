// Charts are drawn from the figures of the rows that are shown; text goes in as text only.
const MOST_BARS = 12;

function make(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? '' : value);
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ''));
  return element;
}

function draw(name, attributes, text) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function figureText(value) {
  return value >= 1000 ? Math.round(value).toLocaleString('en') : String(Number(value.toPrecision(4)));
}

function shorten(text, pixels) {
  const most = Math.max(4, Math.floor(pixels / 6.6));
  const letters = Array.from(text);
  return letters.length <= most ? text : letters.slice(0, most - 1).join('') + '…';
}

function canvas(width, height, label) {
  return draw('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label });
}

// bars: [{label, value, low, high, peak, marked, text}]
function barChart(bars, width, label) {
  const line = 26, letter = 7.2, texts = bars.map((bar) => bar.text || figureText(bar.value));
  const longest = (list) => Math.max(...list.map((text) => text.length)) * letter + 12;
  const names = Math.min(200, width * 0.34, longest(bars.map((bar) => bar.label)));
  const figures = Math.min(longest(texts), width * 0.45);
  const long = Math.max(...bars.map((bar) => Math.max(bar.value, bar.high || 0, bar.peak || 0, bar.room || 0)));
  const scale = (value) => names + (value / long) * (width - names - figures);
  const svg = canvas(width, bars.length * line + 4, label);
  bars.forEach((bar, n) => {
    const y = n * line + 4, middle = y + 8;
    const name = draw('text', { x: 0, y: middle + 4 }, shorten(bar.label, names - 8));
    name.append(draw('title', {}, bar.label));
    svg.append(name);
    if (bar.room) svg.append(draw('rect', { x: names, y, width: Math.max(1, scale(bar.room) - names), height: 16, rx: 2, class: 'room' }));
    svg.append(draw('rect', { x: names, y, width: Math.max(1, scale(bar.value) - names), height: 16, rx: 2, class: bar.marked ? 'marked' : 'bar' }));
    if (bar.low && bar.high) {
      const a = scale(bar.low), b = scale(bar.high);
      svg.append(draw('path', { class: 'whisker', d: `M${a} ${middle - 4}v8M${a} ${middle}H${b}M${b} ${middle - 4}v8` }));
    }
    if (bar.peak) svg.append(draw('path', { class: 'peak', d: `M${scale(bar.peak)} ${y - 2}v20` }));
    svg.append(draw('text', { x: width, y: middle + 4, 'text-anchor': 'end' }, texts[n]));
  });
  return svg;
}

function number(text) {
  return text === '' ? null : Number(text);
}

function barsOf(rows, key) {
  const known = rows.map((row) => factsOf.get(row)).filter((data) => data[key] !== '');
  known.sort((a, b) => b[key] - a[key]);
  return known.slice(0, MOST_BARS).map((data) => {
    const whole = key === 'tps';
    return {
      label: `${data.rank}  ${data.system}` + (data.devices === '1' ? '' : ` (${data.devices})`),
      value: Number(data[key]),
      low: whole ? number(data.low) : null,
      high: whole ? number(data.high) : null,
      peak: whole ? number(data.peak) : null,
      marked: data.name === 'FLAGGED' || data.name === 'UNVERIFIED',
    };
  });
}

function chart(rows, key, title, legend, none, width) {
  const bars = barsOf(rows, key), count = rows.filter((row) => factsOf.get(row)[key] !== '').length;
  const notes = [legend, count > MOST_BARS ? `the best ${MOST_BARS} of ${count}` : ''];
  const caption = make('figcaption', {}, title + ' ', make('span', {}, notes.filter(Boolean).join('; ')));
  const figure = make('figure', {}, caption);
  figure.append(bars.length ? barChart(bars, width, title) : make('p', {}, none));
  return figure;
}

function drawGroup(section) {
  const charts = section.querySelector('details.charts'), place = charts.lastElementChild;
  if (section.hidden || !charts.open) return place.replaceChildren();
  const rows = fittingOf.get(section) || [];
  const wide = place.clientWidth || 640;
  const width = (wide > 850 ? (wide - 14) / 2 : wide) - 32;
  place.replaceChildren(
    chart(rows, 'tps', 'Tokens per second', 'with 95 % interval; dotted: attainable ceiling', '', width),
    chart(rows, 'tpj', 'Tokens per joule', '', 'No bundle shown here has measured its energy.', width),
  );
}

function drawCharts() {
  if (!boardPage.hidden) sections.forEach(drawGroup);
}

function startCharts() {
  for (const section of sections) {
    const charts = section.querySelector('details.charts');
    charts.hidden = false;
    charts.addEventListener('toggle', () => drawGroup(section));
  }
  let waiting = 0;
  addEventListener('resize', () => { clearTimeout(waiting); waiting = setTimeout(() => { drawCharts(); redrawBundle(); }, 100); });
}

// The time of each step: dots and a line, the median dashed, audited steps as rings.
function traceChart(trace, width) {
  const height = 190, left = 58, bottom = 34, top = 10;
  const { values, first, stride } = trace;
  const sorted = [...values].sort((a, b) => a - b);
  const median = sorted[Math.floor((sorted.length - 1) / 2)];
  const least = sorted[0], most = sorted[sorted.length - 1];
  const pad = (most - least) * 0.08 || most * 0.02 || 1;
  const low = Math.max(0, least - pad), high = most + pad;
  const x = (n) => left + (n / Math.max(1, values.length - 1)) * (width - left - 10);
  const y = (value) => top + (1 - (value - low) / (high - low)) * (height - top - bottom);
  const svg = canvas(width, height, `Time of each ${trace.per} in seconds: median ${median}, from ${least} to ${most}`);
  for (let n = 0; n <= 3; n += 1) {
    const value = low + ((high - low) * n) / 3;
    svg.append(draw('path', { class: 'grid', d: `M${left} ${y(value)}H${width - 10}` }));
    svg.append(draw('text', { class: 'soft', x: left - 6, y: y(value) + 4, 'text-anchor': 'end' }, value.toPrecision(3)));
  }
  svg.append(draw('path', { class: 'median', d: `M${left} ${y(median)}H${width - 10}` }));
  svg.append(draw('path', { class: 'trace', d: values.map((value, n) => `${n ? 'L' : 'M'}${x(n).toFixed(1)} ${y(value).toFixed(1)}`).join('') }));
  values.forEach((value, n) => {
    const step = first + n * stride, audited = trace.audited.includes(step);
    const dot = draw('circle', { class: audited ? 'audited' : 'dot', cx: x(n).toFixed(1), cy: y(value).toFixed(1), r: audited ? 4.5 : 2.4 });
    dot.append(draw('title', {}, `${trace.per} ${step}: ${value} s${audited ? ', audited' : ''}`));
    svg.append(dot);
  });
  const ends = [[0, 'start'], [values.length - 1, 'end']];
  for (const [n, anchor] of ends) svg.append(draw('text', { class: 'soft', x: x(n), y: height - 16, 'text-anchor': anchor }, `${trace.per} ${first + n * stride}`));
  return svg;
}
