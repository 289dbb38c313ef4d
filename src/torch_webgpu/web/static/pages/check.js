/** Whether a language model says here what it said in PyTorch: a browser or a driver may compute wrongly, without an error. */

/**
 * The first tokens after the bundle's sentence, compared one by one.
 * @param {number} [limit] milliseconds
 * @returns {Promise<{verdict: "right" | "wrong" | "slow" | "unknown", at: number, of: number}>} `at`: tokens looked at
 */
export async function check(model, limit = 24 * 3_600_000) {
  const known = model.language.check;
  if (!known) return { verdict: "unknown", at: 0, of: 0 };
  const of = known.tokens.length;
  const options = { maxNewTokens: of, temperature: 0, ends: [], signal: AbortSignal.timeout(limit) };
  let at = 0;
  try {
    for await (const { token } of model.generate(known.prompt, options)) {
      if (token !== known.tokens[at++]) return { verdict: "wrong", at, of };
    }
  } catch (error) {
    if (error.name !== "TimeoutError") throw error;
    return { verdict: "slow", at, of };
  }
  return { verdict: "right", at, of };
}
