"use strict";
// Light or dark: what the system prefers, until somebody chooses.

const THEMES = ["system", "light", "dark"];

function storedTheme() {
  try {
    const theme = localStorage.getItem("asyncpool-theme");
    return THEMES.includes(theme) ? theme : "system";
  } catch {
    return "system"; // a browser that stores nothing
  }
}

function useTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("asyncpool-theme", theme);
  } catch {
    // it lasts until the page is closed
  }
}

useTheme(storedTheme());
