// Sets the colours before the first paint, hence a classic script.
(() => {
  "use strict";
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "light" || chosen === "dark") {
      document.documentElement.dataset.theme = chosen;
    }
  } catch {
    // Without storage the system's colours are used.
  }
  // The token is a cookie now: it is removed from the address, the history and screenshots.
  const url = new URL(location.href);
  if (url.searchParams.has("token")) {
    url.searchParams.delete("token");
    history.replaceState(null, "", url);
  }
})();
