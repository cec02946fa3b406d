/** Texts from files that users write. */

/** Without the byte order mark that editors on Windows may begin a file with: JSON, TOML and templates know none. */
export const withoutMark = (text: string): string => (text.startsWith('\uFEFF') ? text.slice(1) : text)
