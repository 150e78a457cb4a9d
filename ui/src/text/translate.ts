/** The page's words in the reader's language. */

import { language } from '../state/preferences'
import { WORDS, type Word } from './words'

/**
 * `{n} {n|token|tokens}` is `1 token` and `2 tokens`: a name in braces is filled in, and of two forms the one is taken
 * that goes with its value.
 */
export function t(word: Word, values: { [name: string]: string | number } = {}): string {
  const [english, chinese] = WORDS[word]
  const text = language.value === 'zh' ? chinese : english
  return text.replace(/\{(\w+)(?:\|([^|}]*)\|([^}]*))?\}/g, (whole, name: string, one?: string, many?: string) => {
    const value = String(values[name] ?? whole)
    return (value === '1' ? one : many) ?? value
  })
}
