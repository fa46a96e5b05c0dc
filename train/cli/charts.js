// Draws the charts of a page with Plotly. It is in reports, and the dashboard serves it as a file.
const wide = {orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal"};
const draw = charts => charts.forEach((chart, number) => {
  const shown = chart.traces.filter(trace => trace.showlegend !== false).length;
  const layout = {height: 300, showlegend: shown > 1, ...chart.layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: {l: 60, r: 20, t: 20, b: 45}, legend: shown > 8 ? {} : wide, yaxis: {ticks: "outside", tickcolor: "rgba(0,0,0,0)", ...chart.layout.yaxis}};
  Plotly.react("chart-" + number, chart.traces, layout, {responsive: true, displayModeBar: false});
});
