/** The page's words in the reader's language. */

import { language } from '../state/preferences'
import { CHINESE } from './chinese'
import { ENGLISH, type Word } from './english'

const WORDS = { en: ENGLISH, zh: CHINESE }

export function t(word: Word, values: { [name: string]: string | number } = {}): string {
  return WORDS[language.value][word].replace(/\{(\w+)\}/g, (whole, name: string) => String(values[name] ?? whole))
}
