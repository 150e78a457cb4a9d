/** The page's words in the reader's language. */

import { language } from '../state/preferences'
import { WORDS, type Word } from './words'

export function t(word: Word, values: { [name: string]: string | number } = {}): string {
  const [english, chinese] = WORDS[word]
  const text = language.value === 'zh' ? chinese : english
  return text.replace(/\{(\w+)\}/g, (whole, name: string) => String(values[name] ?? whole))
}
