// Buttons for theme, grid colors and code, and the contents entry of the section in view. The page is whole without them.
(function () {
  const root = document.documentElement;
  const systemIsDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
  document.getElementById("theme").onclick = () => {
    const dark = root.dataset.theme ? root.dataset.theme === "light" : !systemIsDark();
    root.dataset.theme = dark ? "dark" : "light";
    document.body.dataset.jpThemeLight = String(!dark);  // what pictures made for JupyterLab look at
  };
  const palette = document.getElementById("palette");
  palette.hidden = !document.querySelector(".arcnb-grid, .arcnb-explorer");
  const palettes = ["colorblind", "lightness", "arc"];  // of arcnb.arc.palettes, in the order they are offered
  palette.onclick = () => {
    root.dataset.palette = palettes[(palettes.indexOf(root.dataset.palette) + 1) % palettes.length];
    palette.textContent = `Grid colors: ${root.dataset.palette}`;
  };
  const code = document.getElementById("code");
  if (code) code.onclick = () => {
    const cells = [...document.querySelectorAll("details.code")];
    const open = cells.some((cell) => !cell.open);
    cells.forEach((cell) => { cell.open = open; });
    code.textContent = open ? "Hide code" : "Show code";
  };
  const entries = new Map([...document.querySelectorAll("nav a")].map((a) => [decodeURIComponent(a.hash.slice(1)), a]));
  const mark = () => {
    let last = null;
    for (const id of entries.keys()) {
      const heading = document.getElementById(id);
      if (heading && heading.getBoundingClientRect().top < innerHeight * 0.3) last = id;
    }
    entries.forEach((a, id) => a.classList.toggle("here", id === last));
  };
  if (entries.size) { addEventListener("scroll", mark, { passive: true }); mark(); }
})();
