// What the page keeps: in this tab only (sessionStorage), except the colours. Without storage it keeps nothing.

export function load(name, fallback) {
  try {
    const text = sessionStorage.getItem(`stoker.${name}`);
    return text === null ? fallback : JSON.parse(text);
  } catch {
    return fallback;
  }
}

export function save(name, value) {
  try {
    if (value === null) sessionStorage.removeItem(`stoker.${name}`);
    else sessionStorage.setItem(`stoker.${name}`, JSON.stringify(value));
  } catch {
    // full, or not allowed
  }
}
