"use strict";
// Draws the charts of the report. Reads the JSON of the page, asks for nothing else.
(() => {
  const host = document.getElementById("plots");
  const { charts, phases } = JSON.parse(document.getElementById("result").textContent);
  if (!host || !charts.length) return;

  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2], [3, 3, 1, 3], [12, 6], [6, 2, 2, 2, 2, 2]];
  const SVG = "http://www.w3.org/2000/svg";
  const plots = [];

  const digits = (value, few) => Number(value.toPrecision(few)).toLocaleString("en");
  const scaled = (value, steps) => {
    for (const [factor, unit] of steps) {
      if (Math.abs(value) >= factor) return `${digits(value / factor, 3)} ${unit}`;
    }
    return digits(value, 3);
  };
  const SHOWN = {
    per_s: (value) => `${digits(value, 4)}/s`,
    count: (value) => digits(value, 6),
    cores: (value) => digits(value, 3),
    ms: (value) =>
      value !== 0 && Math.abs(value) < 1
        ? `${digits(value * 1e3, 3)} us`
        : scaled(value, [[6e4, "min"], [1e3, "s"], [1, "ms"]]),
    bytes: (value) => scaled(value, [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]),
  };

  // Distances 10, 100 ... to 100 % are the percentiles 90, 99 ...
  const percentile = (distance) => {
    const nines = Math.max(0, Math.ceil(Math.log10(distance)) - 1);
    return `${Number((100 - 100 / distance).toFixed(nines))}`;
  };
  const position = (chart, x) =>
    chart.key === "spectrum" ? `p${percentile(x)}` : `${digits(x, 6)} s`;

  const made = (name, attributes = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const lineColour = (index) => colour(`--line-${(index % 8) + 1}`);

  const gist = (chart) =>
    chart.lines
      .map(({ label, y }) => {
        const known = y.filter((value) => value !== null);
        const least = known.reduce((a, b) => Math.min(a, b));
        const most = known.reduce((a, b) => Math.max(a, b));
        const show = SHOWN[chart.unit];
        return `${label}: ${show(least)} to ${show(most)}, last ${show(known[known.length - 1])}`;
      })
      .join("; ");

  const said = (chart, index) => {
    const values = chart.lines.map(({ label, y }) =>
      `${label} ${y[index] === null ? "none" : SHOWN[chart.unit](y[index])}`);
    return `${position(chart, chart.x[index])}: ${values.join(", ")}`;
  };

  const marks = (plot, chart) => {
    if (chart.key === "spectrum") return;
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("--dim");
    ctx.textAlign = "left";
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.setLineDash([2, 4]);
    let row = 0, last = -Infinity;
    for (const { name, at } of phases) {
      const x = plot.valToPos(at, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      // A name that would be written over the one before goes below it.
      row = x - last < 60 * devicePixelRatio ? row + 1 : 0;
      last = x;
      ctx.fillText(name, x + 3 * devicePixelRatio, bbox.top + 12 * (row + 1) * devicePixelRatio);
    }
    ctx.restore();
  };

  const axis = (chart, side) => ({
    stroke: colour("--text"),
    grid: { stroke: colour("--edge"), width: 1 },
    ticks: { stroke: colour("--edge"), width: 1 },
    font: "12px system-ui, sans-serif",
    ...(side === "x"
      ? {
          label: chart.xLabel, labelFont: "12px system-ui, sans-serif", labelSize: 22,
          values: (_, ticks) => ticks.map((tick) =>
            tick === null ? null : chart.key === "spectrum" ? percentile(tick) : digits(tick, 6)),
        }
      : {
          size: 70,
          values: (_, ticks) => ticks.map((tick) => (tick === null ? null : SHOWN[chart.unit](tick))),
        }),
  });

  const options = (chart, width, readout) => {
    const spectrum = chart.key === "spectrum";
    const positive = chart.lines.every(({ y }) => y.every((value) => value === null || value > 0));
    return {
      width,
      height: Math.max(200, Math.min(300, Math.round(width * 0.55))),
      legend: { show: false },
      scales: {
        x: spectrum ? { time: false, distr: 3, log: 10 } : { time: false },
        y: spectrum && positive
          ? { distr: 3, log: 10 }
          : { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.15 : 1] },
      },
      axes: [axis(chart, "x"), axis(chart, "y")],
      series: [
        {},
        ...chart.lines.map(({ label }, index) => ({
          label, stroke: lineColour(index), width: 2, dash: DASHES[index % 8],
          spanGaps: spectrum, points: { show: chart.x.length < 3 },
        })),
      ],
      cursor: { y: false, drag: { x: true, y: false } },
      hooks: {
        setCursor: [(plot) => {
          readout.textContent = plot.cursor.idx == null ? "" : said(chart, plot.cursor.idx);
        }],
        draw: [(plot) => marks(plot, chart)],
      },
    };
  };

  const sample = (index) => {
    const svg = document.createElementNS(SVG, "svg");
    const line = document.createElementNS(SVG, "line");
    svg.setAttribute("aria-hidden", "true");
    for (const [key, value] of Object.entries({
      x1: 0, x2: 28, y1: 4, y2: 4, "stroke-width": 3, stroke: `var(--line-${(index % 8) + 1})`,
      "stroke-dasharray": DASHES[index % 8].join(" ") || "none",
    })) line.setAttribute(key, value);
    svg.append(line);
    return svg;
  };

  const values = (chart) => {
    const details = made("details", {}, made("summary", {}, `Values: ${chart.title}`));
    // Thousands of rows are built for who asks for them.
    details.addEventListener("toggle", () => {
      if (details.children.length > 1) return;
      const head = made("tr", {}, made("th", { scope: "col" }, chart.xLabel));
      for (const { label } of chart.lines) head.append(made("th", { scope: "col", class: "number" }, label));
      const body = made("tbody");
      chart.x.forEach((x, index) => {
        const row = made("tr", {}, made("th", { scope: "row" }, position(chart, x)));
        for (const { y } of chart.lines) {
          row.append(made("td", { class: "number" }, y[index] === null ? "-" : SHOWN[chart.unit](y[index])));
        }
        body.append(row);
      });
      const table = made("table", {}, made("caption", {}, chart.title), made("thead", {}, head), body);
      details.append(made("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": chart.title }, table));
    });
    return details;
  };

  const draw = (entry) => {
    const shown = entry.plot && entry.plot.series.map((line) => line.show);
    entry.plot?.destroy();
    entry.width = Math.floor(entry.box.clientWidth);
    const { chart } = entry;
    const rows = [chart.x, ...chart.lines.map(({ y }) => y)];
    entry.plot = new uPlot(options(chart, entry.width, entry.readout), rows, entry.box);
    shown?.forEach((show, index) => { if (index && !show) entry.plot.setSeries(index, { show }); });
  };

  const moved = (event, { plot, chart }) => {
    const last = chart.x.length - 1;
    const at = plot.cursor.idx ?? -1;
    const step = event.shiftKey ? 10 : 1;
    const to = {
      ArrowRight: Math.min(last, at + step), ArrowLeft: Math.max(0, (at < 0 ? last + 1 : at) - step),
      Home: 0, End: last,
    }[event.key];
    if (event.key === "Escape") {
      plot.setScale("x", { min: chart.x[0], max: chart.x[last] });
      event.preventDefault();
    } else if (to !== undefined) {
      plot.setCursor({ left: plot.valToPos(chart.x[to], "x"), top: 0 });
      event.preventDefault();
    }
  };

  for (const chart of charts) {
    const name = `chart-${chart.key}`;
    const readout = made("output", { class: "readout", "aria-live": "polite" });
    const box = made("div", {
      class: "plot", tabindex: "0", role: "group", "aria-roledescription": "chart",
      "aria-labelledby": name, "aria-describedby": `${name}-gist how`,
    });
    const keys = made("div", { class: "keys", role: "group", "aria-label": `Lines of ${chart.title}` });
    const entry = { chart, box, readout, plot: null, width: 0 };
    chart.lines.forEach(({ label }, index) => {
      const button = made("button", { type: "button", "aria-pressed": "true" }, sample(index), label);
      button.addEventListener("click", () => {
        const show = !entry.plot.series[index + 1].show;
        entry.plot.setSeries(index + 1, { show });
        button.setAttribute("aria-pressed", String(show));
      });
      keys.append(button);
    });
    host.append(made("figure", { id: `figure-${chart.key}` },
      made("figcaption", { id: name }, chart.title),
      made("p", { class: "gist", id: `${name}-gist` }, gist(chart)),
      keys, box, readout, values(chart)));
    draw(entry);
    box.addEventListener("keydown", (event) => moved(event, entry));
    plots.push(entry);
  }

  new ResizeObserver(() => {
    for (const entry of plots) if (Math.floor(entry.box.clientWidth) !== entry.width) draw(entry);
  }).observe(host);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach(draw));
})();
