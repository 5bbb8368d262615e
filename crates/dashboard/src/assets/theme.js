// Sets the colours before anything is drawn, so that nothing flashes. A classic script on purpose.
(() => {
  "use strict";
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "light" || chosen === "dark") {
      document.documentElement.dataset.theme = chosen;
    }
  } catch {
    // Without storage the system's choice counts.
  }
  // The token has done its work: it is a cookie now, and belongs neither into the history of the
  // browser nor into a screenshot.
  const url = new URL(location.href);
  if (url.searchParams.has("token")) {
    url.searchParams.delete("token");
    history.replaceState(null, "", url);
  }
})();
