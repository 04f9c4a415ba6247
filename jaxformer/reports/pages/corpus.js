// Charts of lengths by their names: sentences of each length, of both sides.
for (const [split, lengths] of Object.entries(pageData)) {
  for (const unit of Object.keys(lengths.source)) { // words, and pieces if prepared
    const values = Object.entries(lengths).flatMap(([side, { [unit]: counts }]) => {
      const longest = Math.max(...Object.keys(counts).map(Number));
      return Array.from({ length: longest + 2 }, (_, length) =>
        ({ side, length, sentences: counts[length] ?? 0 }));
    });
    const sides = Object.keys(lengths);
    specs[`${split}-${unit}`] = {
      title: `${unit} a sentence`, width: Math.min(330, innerWidth - 110), height: 190, data: { values },
      mark: { type: "area", interpolate: "step", opacity: 0.35, line: true },
      encoding: {
        x: { field: "length", type: "quantitative", title: unit },
        y: { field: "sentences", type: "quantitative", title: "sentences", stack: null },
        color: {
          field: "side", type: "nominal", legend: { title: null, orient: "top-right" },
          scale: { domain: sides, range: COLOURS.slice(0, sides.length) },
        },
        tooltip: [
          { field: "side", type: "nominal" }, { field: "length", type: "quantitative" },
          { field: "sentences", type: "quantitative" },
        ],
      },
    };
  }
}
