"use strict";
// Draws each chart when it comes near the window, so that a page of many runs opens at once.
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const font = { family: getComputedStyle(document.body).fontFamily, size: 13, color: "#1b2430" };
  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: "hover",
    modeBarButtons: [["toImage"]],
  };

  function axis(own) {
    return Object.assign(
      { gridcolor: "#e8ecf0", linecolor: "#c3cbd4", zeroline: false, automargin: true, fixedrange: false },
      own
    );
  }

  function draw(chart) {
    if (chart.dataset.drawn || chart.offsetParent === null) return;
    chart.dataset.drawn = "yes";
    const figure = figures[chart.dataset.figure];
    const layout = Object.assign(
      {
        font: font,
        margin: { l: 52, r: 14, t: 26, b: 44 },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        modebar: { bgcolor: "rgba(255,255,255,0.9)", color: "#5a6675", activecolor: "#0072b2" },
        hoverlabel: { bgcolor: "#ffffff", bordercolor: "#c3cbd4" },
      },
      figure.layout,
      { xaxis: axis(figure.layout.xaxis), yaxis: axis(figure.layout.yaxis) }
    );
    Plotly.newPlot(chart, figure.data, layout, config).then(function () {
      applyLegend(chart);
      chart.on("plotly_click", openRun);
    });
  }

  function openRun(event) {
    const number = event.points[0].customdata;
    const known = document.getElementById("run");
    if (!known || typeof number !== "number") return;
    known.value = String(number);
    known.dispatchEvent(new Event("change"));
    known.scrollIntoView({ behavior: "smooth" });
  }

  function hiddenGroups(scope) {
    const pressed = scope ? scope.querySelectorAll('button[aria-pressed="false"]') : [];
    return new Set(Array.from(pressed, (button) => button.dataset.group));
  }

  function applyLegend(chart) {
    const hidden = hiddenGroups(chart.closest(".experiment"));
    if (!chart.data || !chart.closest(".experiment")) return;
    const visible = chart.data.map((trace) => !hidden.has(trace.meta));
    Plotly.restyle(chart, { visible: visible });
  }

  const charts = Array.from(document.querySelectorAll(".chart"));
  const watcher = new IntersectionObserver(
    function (entries) {
      entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target));
    },
    { rootMargin: "400px 0px" }
  );
  charts.forEach((chart) => watcher.observe(chart));
  window.addEventListener("beforeprint", () => charts.forEach(draw));

  document.querySelectorAll(".legend button").forEach(function (button) {
    button.addEventListener("click", function () {
      const pressed = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!pressed));
      const scope = button.closest(".experiment");
      scope.querySelectorAll(".chart[data-drawn]").forEach(applyLegend);
    });
  });

  const chooser = document.getElementById("run");
  if (chooser) {
    chooser.addEventListener("change", function () {
      document.querySelectorAll(".run").forEach(function (panel) {
        panel.hidden = panel.dataset.run !== chooser.value;
      });
    });
  }
})();
