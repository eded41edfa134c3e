// Sets the theme before the first paint: the stored choice, or that of the system.
'use strict';
(() => {
  let stored;
  try {
    stored = localStorage.getItem('bellerophon-theme');
  } catch {
    // Storage may be off; the theme of the system is used then.
  }
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = stored || (dark ? 'dark' : 'light');
})();
