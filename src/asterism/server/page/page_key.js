// The key of the page: the second secret of a session, beside its cookie. A login puts it after "#" in the address, which
// no server gets; the storage of this origin keeps it. Browsers share cookies between ports, but not this storage.
const NAME = "asterism-page-key";
const given = /^#key=([\w-]+)$/.exec(location.hash);
if (given) {
  localStorage.setItem(NAME, given[1]);
  history.replaceState(null, "", "#/plans");
}

// A person whom a proxy has logged in has no key; the header itself tells the page from others.
export const pageKey = () => localStorage.getItem(NAME) ?? "page";
