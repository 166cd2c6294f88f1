// Decisions say why; most readers search for how.
var Scorer = {
  score: ([docname, title, anchor, descr, score]) => (docname.startsWith("decisions/") ? score - 100 : score),
  // The values of Sphinx
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
