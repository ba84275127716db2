// The chosen colours, before anything is drawn. Without a choice, those of the system.
try {
  const theme = localStorage.getItem("stoker.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // no storage: the colours of the system
}
