// The texts of the interface. A translation is a file with the names of en.js, imported here.

export * from "./en.js";
