/** What a reader prefers on every page: the theme and the language. Kept by the browser where it lets us. */

import { keep, kept, localStore } from './kept'
import { Store } from './store'

export type Theme = 'auto' | 'light' | 'dark'
export type Language = 'en' | 'zh'

const THEME = 'astune-theme'
const LANGUAGE = 'astune-language'

function browserLanguage(): Language {
  return navigator.language.toLowerCase().startsWith('zh') ? 'zh' : 'en'
}

export const theme = new Store<Theme>('auto')
export const language = new Store<Language>('en')
/** Whether the page is dark now, by choice or by the system's preference. */
export const dark = new Store(false)

export function startPreferences(): void {
  const system = matchMedia('(prefers-color-scheme: dark)')
  const show = (): void => {
    dark.set(theme.value === 'dark' || (theme.value === 'auto' && system.matches))
    document.documentElement.dataset.theme = dark.value ? 'dark' : 'light'
  }
  theme.set((kept(THEME, localStore) as Theme | null) ?? 'auto')
  language.set((kept(LANGUAGE, localStore) as Language | null) ?? browserLanguage())
  document.documentElement.lang = language.value
  system.addEventListener('change', show)
  theme.subscribe((value) => {
    keep(THEME, value, localStore)
    show()
  })
  language.subscribe((value) => {
    keep(LANGUAGE, value, localStore)
    document.documentElement.lang = value
  })
  show()
}

export function toggleTheme(): void {
  theme.set(dark.value ? 'light' : 'dark')
}

export function toggleLanguage(): void {
  language.set(language.value === 'en' ? 'zh' : 'en')
}
